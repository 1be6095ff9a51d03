// Residual streams as rows of the registry.
#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/rows.h"
#include "rowjit/library.h"

namespace rowjit {
namespace {

Dtype wide_of(Dtype dtype) { return dtype == f64 ? f64 : f32; }

// The streams that are read and those that are written: two axes of one extent.
struct Streams {
    Axis from;
    Axis to;
};

Streams streams_axes(Graph& graph, std::int64_t count) {
    if (count < 2 || count > 8) fail(ErrorCode::kInvalidArgument, "{} streams; give 2 … 8", count);
    return {graph.columns("streams", count), graph.columns("to_streams", count)};
}

Value streams_input(Graph& graph, const OpRequest& request, Axis streams) {
    return graph.input("x", request.dtype, {graph.rows("tokens"), streams, request.columns});
}

Results declare_hyper_pre(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const std::int64_t n = options.integer("streams");
    const Axis coefficients = graph.columns("coefficients", n * (n + 2));
    const Dtype wide = wide_of(request.dtype);
    const Streams streams = streams_axes(graph, n);
    return {streams_input(graph, request, streams.from), graph.input("mix", wide, {graph.rows("tokens"), coefficients}),
            graph.input("scale_pre", wide, {}),          graph.input("scale_post", wide, {}),
            graph.input("scale_residual", wide, {}),     graph.input("bias", wide, {coefficients})};
}

Results apply_hyper_pre(Operands in, const OptionValues& options) {
    const GraphData& data = *in[0].graph();
    const std::vector<AxisId> columns = data.column_axes(data.node(in[0].id()));
    if (columns.empty()) fail(ErrorCode::kInvalidGraph, "hyper_pre({}): it has no columns", in[0].description());
    Graph graph(in[0].graph());
    const Axis from{columns[0]};
    const Axis to = graph.columns("to_" + data.axis(from.id).label(), graph.extent(from));
    const HyperCoefficients found = hyper_coefficients(in[1], {in[2], in[3], in[4]}, in[5], from, to,
                                                       {.iterations = options.integer("iterations")});
    return {hyper_pre(in[0], found.pre), found.post, found.mixing};
}

Results declare_hyper_post(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const Streams streams = streams_axes(graph, options.integer("streams"));
    const Axis tokens = graph.rows("tokens");
    const Dtype wide = wide_of(request.dtype);
    return {streams_input(graph, request, streams.from), rows_by_columns(graph, "branch", request),
            graph.input("post", wide, {tokens, streams.to}),
            graph.input("mixing", wide, {tokens, streams.to, streams.from})};
}

Results apply_hyper_post(Operands in, const OptionValues&) { return {hyper_post(in[0], in[1], in[2], in[3])}; }

Results declare_attention_residual(Graph& graph, const OpRequest& request, const OptionValues& options) {
    const std::int64_t depth = options.integer("depth");
    if (depth < 1 || depth > 1024)
        fail(ErrorCode::kInvalidArgument, "attention_residual: a depth of {}; give 1 … 1024", depth);
    Results operands = {
        graph.input("states", request.dtype, {graph.rows("depth", depth), graph.rows("tokens"), request.columns}),
        graph.input("query", request.dtype, {request.columns})};
    declare_weight(graph, request, options, operands);
    return operands;
}

Results apply_attention_residual(Operands in, const OptionValues& options) {
    const AttentionResidual found = attention_residual(in[0], in[1], operand(in, 2), {.eps = options.number("eps")});
    return {found.y, found.weights};
}

constexpr OptionInfo kStreams = {"streams", OptionType::kInteger, "4", "", true, "rows that a token's state is"};
constexpr std::string_view kStates = "{tokens, streams, columns}";
constexpr std::string_view kNumber = "{}";

}  // namespace

std::vector<CompositeInfo> stream_rows() {
    return {
        {"hyper_pre",
         "the input of a branch out of the streams of a manifold-constrained hyper-connection, and the coefficients of "
         "its output",
         "y = Σ pre·x over the streams; pre = σ(s·mix + b), post = 2·σ(s·mix + b), mixing = Sinkhorn(exp(s·mix + b)), "
         "each of its own columns of mix and b",
         "hidden size",
         {{"x", kStates, "dtype", true},
          {"mix", "{tokens, streams·(streams + 2)}", "f32", true},
          {"scale_pre", kNumber, "f32", true},
          {"scale_post", kNumber, "f32", true},
          {"scale_residual", kNumber, "f32", true},
          {"bias", "{streams·(streams + 2)}", "f32", true}},
         {"y", "post", "mixing"},
         {kStreams, {"iterations", OptionType::kInteger, "20", "", false, "of the normalisation of rows and columns"}},
         declare_hyper_pre,
         apply_hyper_pre},
        {"hyper_post",
         "the streams after a branch: mixed with each other, and the branch's output added to each",
         "y = Σ mixing·x over the streams + post·branch",
         "hidden size",
         {{"x", kStates, "dtype", true},
          {"branch", kRow, "dtype", true},
          {"post", "{tokens, to_streams}", "f32", true},
          {"mixing", "{tokens, to_streams, streams}", "f32", true}},
         {"y"},
         {kStreams},
         declare_hyper_post,
         apply_hyper_post},
        {"attention_residual",
         "the states of earlier layers, weighed by a softmax over them",
         "y = Σ weights·states over the depth, weights = softmax(query · rms_norm(states))",
         "hidden size",
         {{"states", "{depth, tokens, columns}", "dtype", true}, {"query", "{columns}", "dtype", true}, kWeight},
         {"y", "weights"},
         {{"depth", OptionType::kInteger, "8", "", true, "how many states there are"},
          {"weight", OptionType::kChoice, "same", "same f32 none", true, "the weight's dtype, or no weight"},
          {"eps", OptionType::kNumber, "1e-6", "", false, "added to the mean square"}},
         declare_attention_residual,
         apply_attention_residual},
    };
}

}  // namespace rowjit
