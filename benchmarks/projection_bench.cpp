// A norm, a projection and rotary embedding, and a gated MLP, each as one program, beside the same in programs of their
// own and beside the products alone; bf16, in one process, in turn, round by round; medians. JSON on standard output, a
// line for each.
//
//     projection_bench [DEVICE [qkv:TOKENSxHIDDENxPROJECTED | gated:TOKENSxHIDDENxINNER …]]
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/contenders.h"
#include "dsl/graph.h"
#include "rowjit/coord.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

constexpr int kRounds = 9;
constexpr std::int64_t kHead = 128;

// ---- Attention's way in
// ----------------------------------------------------------------------------------------------

// Heads of queries as wide together as the hidden state; keys and values share the rest of what is projected.
class Projection {
  public:
    explicit Projection(const ProductShape& shape)
        : shape_(shape), queries_(shape.hidden / kHead), shared_((shape.columns - shape.hidden) / (2 * kHead)) {
        if (shape.hidden % kHead != 0 || shared_ < 1 || (queries_ + 2 * shared_) * kHead != shape.columns)
            fail(ErrorCode::kInvalidArgument, "{} columns of {} hidden are no heads of {} of queries, keys and values",
                 shape.columns, shape.hidden, kHead);
    }

    Graph norm() const {
        Graph g;
        g.output("normed", rms_norm(x(g), norm_weight(g)));
        return g;
    }
    Graph product(std::string_view of) const {
        Graph g;
        g.output("qkv", project(g, g.input(of, bf16, {g.rows("tokens"), width(g)})));
        return g;
    }
    Graph rope_apart() const {
        Graph g;
        store(g, g.input("qkv", bf16, {g.rows("tokens"), projected(g), d(g)}));
        return g;
    }
    Graph whole() const {
        Graph g;
        store(g, project(g, rms_norm(x(g), norm_weight(g))));
        return g;
    }
    // The weight of the norm is the projection's.
    Graph scaled_behind() const {
        Graph g;
        const Value hidden = x(g);
        const Value wide = cast(hidden, f32);
        const Value r = rsqrt(mean(wide * wide) + 1e-6);
        store(g, cast(cast(project(g, hidden), f32) * r, bf16));
        return g;
    }

  private:
    Axis width(Graph& g) const { return g.columns("width", shape_.hidden); }
    Axis d(Graph& g) const { return g.columns("d", kHead); }
    Axis projected(Graph& g) const { return g.columns("projected", queries_ + 2 * shared_); }
    Value x(Graph& g) const { return g.input("x", bf16, {g.rows("tokens"), width(g)}); }
    Value norm_weight(Graph& g) const { return g.input("norm_weight", bf16, {width(g)}); }
    Value project(Graph& g, const Value& normed) const {
        return matmul(normed, g.input("weight", bf16, {projected(g), d(g), width(g)}), {width(g)});
    }
    void store(Graph& g, const Value& qkv) const {
        const Axis tokens = g.rows("tokens");
        const Value cos = g.input("cos", bf16, {tokens, d(g)});
        const Value sin = g.input("sin", bf16, {tokens, d(g)});
        const Axis queries = g.columns("queries", queries_);
        const Axis shared = g.columns("shared", shared_);
        const auto heads = [&](Axis axis, std::int64_t first) {
            return index(qkv, {Coord(tokens), Coord(axis) + first, Coord(d(g))});
        };
        g.output("q", rope(heads(queries, 0), cos, sin));
        g.output("k", rope(heads(shared, queries_), cos, sin));
        g.output("v", heads(shared, queries_ + shared_));
    }

    const ProductShape shape_;
    const std::int64_t queries_;
    const std::int64_t shared_;
};

// ---- A gated MLP
// -----------------------------------------------------------------------------------------------------

class GatedMlp {
  public:
    explicit GatedMlp(const ProductShape& shape) : shape_(shape) {}

    // Of x by the weight named, to what is named.
    Graph into(std::string_view weight, std::string_view result, std::int64_t columns) const {
        Graph g;
        g.output(result, raise(g, weight, columns));
        return g;
    }
    Graph activation_of_two() const {
        Graph g;
        const Axis tokens = g.rows("tokens");
        g.output("activated",
                 swiglu(g.input("gated", bf16, {tokens, inner(g)}), g.input("raised", bf16, {tokens, inner(g)})));
        return g;
    }
    Graph activation_of_packed() const {
        Graph g;
        g.output("activated", activated(g, g.input("packed", bf16, {g.rows("tokens"), both(g)})));
        return g;
    }
    Graph down() const {
        Graph g;
        g.output("y", lower(g, g.input("activated", bf16, {g.rows("tokens"), inner(g)})));
        return g;
    }
    Graph whole() const {
        Graph g;
        g.output("y", lower(g, activated(g, raise(g, "gate_up", 2 * shape_.columns))));
        return g;
    }

  private:
    Axis width(Graph& g) const { return g.columns("width", shape_.hidden); }
    Axis inner(Graph& g) const { return g.columns("inner", shape_.columns); }
    Axis both(Graph& g) const { return g.columns("both", 2 * shape_.columns); }
    Value raise(Graph& g, std::string_view weight, std::int64_t columns) const {
        const Axis raised = columns == shape_.columns ? inner(g) : both(g);
        return matmul(g.input("x", bf16, {g.rows("tokens"), width(g)}), g.input(weight, bf16, {raised, width(g)}),
                      {width(g)});
    }
    Value lower(Graph& g, const Value& from) const {
        return matmul(from, g.input("down", bf16, {g.columns("out", shape_.hidden), inner(g)}), {inner(g)});
    }
    Value activated(Graph& g, const Value& packed) const {
        const Coord gate(inner(g));
        return swiglu(index(packed, both(g), gate), index(packed, both(g), gate + shape_.columns));
    }

    const ProductShape shape_;
};

// ---- Timing
// ----------------------------------------------------------------------------------------------------------

// Programs that run one after the other, all on the same tensors by their names.
struct Line {
    std::string name;
    std::vector<Graph> programs;
    ChunkOptions chunks = {};
};

std::vector<Line> lines_of(const std::string& kind, const ProductShape& shape) {
    if (kind == "qkv") {
        const Projection one(shape);
        return {{"product", {one.product("x")}},
                {"norm, product, rope", {one.norm(), one.product("normed"), one.rope_apart()}},
                {"one program", {one.whole()}},
                {"one program, the scale behind the product", {one.scaled_behind()}}};
    }
    if (kind == "gated") {
        const GatedMlp one(shape);
        const Graph packed = one.into("gate_up", "packed", 2 * shape.columns);
        return {{"products", {packed, one.down()}},
                {"gate, up, activation, product",
                 {one.into("gate", "gated", shape.columns), one.into("up", "raised", shape.columns),
                  one.activation_of_two(), one.down()}},
                {"product, activation, product", {packed, one.activation_of_packed(), one.down()}},
                {"one program", {one.whole()}},
                {"one program, all rows at once", {one.whole()}, {.workspace_limit_bytes = std::int64_t{64} << 30}}};
    }
    fail(ErrorCode::kInvalidArgument, "no computation '{}' is timed; give qkv or gated", kind);
}

class Bench {
  public:
    Bench(Engine& engine, std::int64_t tokens) : engine_(engine), rows_{{"tokens", tokens}} {}

    void add(const Line& line) {
        std::vector<std::shared_ptr<Executable>> executables;
        std::vector<Arguments> arguments;
        std::size_t workspace = 0;
        for (const Graph& graph : line.programs) {
            make_tensors(*graph.data());
            executables.push_back(std::make_shared<Executable>(engine_.compile(graph, nullptr, line.chunks)));
            arguments.push_back(executables.back()->arguments());
            Arguments& of = arguments.back();
            of.rows("tokens", rows_.at("tokens"));
            for (const auto& [name, memory] : tensors_) {
                if (has_tensor(*graph.data(), name)) of.tensor(name, memory->data());
            }
            const std::size_t bytes = executables.back()->workspace_bytes(of);
            workspace = std::max(workspace, bytes);
            workspaces_.push_back(std::make_unique<Memory>(engine_.device(), bytes));
            of.workspace(workspaces_.back()->data(), bytes);
        }
        contenders_.push_back({line.name, 0, workspace, std::make_unique<Work>([=] {
                                   for (std::size_t i = 0; i < executables.size(); ++i)
                                       executables[i]->launch(nullptr, arguments[i]).or_throw();
                               })});
    }

    nlohmann::json run() {
        time_in_turn(engine_.device(), kRounds, &contenders_);
        nlohmann::json found = nlohmann::json::array();
        for (const Contender& one : contenders_) {
            found.push_back({{"name", one.name},
                             {"ms", one.median_ms()},
                             {"over_products", one.median_ms() / contenders_[0].median_ms()},
                             {"samples_ms", one.samples_ms},
                             {"workspace_bytes", one.workspace_bytes}});
        }
        return found;
    }

  private:
    static bool has_tensor(const GraphData& graph, const std::string& name) {
        return graph.find_input(name).has_value() ||
               std::any_of(graph.outputs().begin(), graph.outputs().end(),
                           [&](const OutputInfo& output) { return output.name == name; });
    }

    void make_tensors(const GraphData& graph) {
        for (NodeId id = 0; id < graph.size(); ++id) {
            const Node& node = graph.node(id);
            if (node.kind == NodeKind::kInput) make_tensor(node.name, input_layout(graph, node.name, rows_));
        }
        for (const OutputInfo& output : graph.outputs())
            make_tensor(output.name, output_layout(graph, output.name, rows_));
    }

    void make_tensor(const std::string& name, const Layout& layout) {
        auto& memory = tensors_[name];
        if (memory) return;
        const std::int64_t elements = buffer_elements(layout);
        memory =
            std::make_unique<Memory>(engine_.device(), static_cast<std::size_t>(elements) * size_bytes(layout.dtype));
        const double scale = layout.extents.size() > 1 && layout.extents[0] != rows_.at("tokens") ? 0.02 : 0.5;
        fill(engine_.device(), *memory, layout.dtype, elements, [&](double drawn) { return scale * drawn; });
    }

    Engine& engine_;
    const RowExtents rows_;
    std::map<std::string, std::unique_ptr<Memory>> tensors_;
    std::vector<std::unique_ptr<Memory>> workspaces_;
    std::vector<Contender> contenders_;
};

}  // namespace

int main(int argc, char** argv) {
    try {
        Engine engine(argc > 1 ? Device(argv[1]) : Device::best(), {.cache_directory = "off"});
        std::vector<std::string> asked(argv + std::min(argc, 2), argv + argc);
        if (asked.empty()) {
            asked = engine.device().impl().target().is_gpu()
                        ? std::vector<std::string>{"qkv:8192x4096x6144", "qkv:8192x8192x10240", "gated:8192x4096x14336"}
                        : std::vector<std::string>{"qkv:64x256x768", "gated:64x256x704"};
        }
        for (const std::string& text : asked) {
            const auto colon = text.find(':');
            const std::string kind = text.substr(0, colon);
            const ProductShape shape = product_shape_of(colon == std::string::npos ? "" : text.substr(colon + 1));
            Bench bench(engine, shape.tokens);
            for (const Line& line : lines_of(kind, shape)) bench.add(line);
            const nlohmann::json json = {{"device", engine.device().description()},
                                         {"computation", kind},
                                         {"tokens", shape.tokens},
                                         {"hidden", shape.hidden},
                                         {"columns", shape.columns},
                                         {"rounds", kRounds},
                                         {"contenders", bench.run()}};
            fmt::print("{}\n", json.dump());
            std::fflush(stdout);
        }
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "projection_bench: {}\n", error.what());
        return 1;
    }
}
