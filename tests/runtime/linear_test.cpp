// Fused linear losses on the CPU: divided into chunks in every way, against the oracle and against one another.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/target.h"
#include "compiler/compile.h"
#include "compiler/workspace.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/coord.h"
#include "rowjit/engine.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"
#include "runtime/engine_impl.h"
#include "runtime/verify.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

const EngineOptions kOptions = {.cache_directory = "off", .use_tuning = false};

Graph loss_graph(std::int64_t vocabulary, std::int64_t hidden, Dtype dtype, OptionMap options = {}) {
    options["hidden"] = std::to_string(hidden);
    return make_graph("fused_linear_cross_entropy", {.columns = vocabulary, .dtype = dtype, .options = options});
}

const OptionMap kNarrow = {{"hidden", "24"}};

// Of the registry, but for what has no scalar loss.
std::vector<CompositeInfo> fused_rows() {
    std::vector<CompositeInfo> rows;
    for (const CompositeInfo& row : composites()) {
        if (row.name.starts_with("fused_linear_") && row.results[0] == "loss") rows.push_back(row);
    }
    return rows;
}

// "" where the graph is divided into chunks, else why it is not.
std::string undivided(const Graph& graph) {
    const Plan plan = plan_graph(*graph.data(), find_target("native"), {});
    return !plan.loops.empty() ? "" : fmt::format("{}", fmt::join(plan.notes, "\n"));
}

// The loss and its gradients in one pass.
Graph step_graph(std::string_view op, const OpRequest& request) {
    const Graph loss = make_graph(op, request);
    return gradient(loss, trained_inputs(op, loss), {.joint = true, .unit_cotangent = true});
}

Graph step_graph(const Graph& loss) {
    return gradient(loss, trained_inputs("fused_linear_cross_entropy", loss), {.joint = true, .unit_cotangent = true});
}

Bindings inputs_of(const Graph& graph, std::int64_t tokens, std::uint64_t launch = 0) {
    return random_inputs(*graph.data(), {{"tokens", tokens}}, {.seed = 7 + launch, .scale = 0.5});
}

// Three tokens, whose targets are all ignored.
Bindings ignoring_all(const Graph& graph) {
    Bindings bindings = inputs_of(graph, 3);
    for (auto& [name, tensor] : bindings.tensors) {
        if (name == "target") std::fill(tensor.values.begin(), tensor.values.end(), -100);
    }
    return bindings;
}

Tensors run_chunked(Engine& engine, const Graph& graph, const Bindings& bindings, const ChunkOptions& chunks) {
    return run(engine.device(), engine.compile(graph, nullptr, chunks), *graph.data(), bindings);
}

std::vector<Verification> check(Engine& engine, const Graph& graph, const Bindings& bindings,
                                const ChunkOptions& chunks) {
    return verify(engine.device(), engine.compile(graph, nullptr, chunks), *graph.data(), bindings);
}

// Bytes of a value that no launch may touch, before and behind a block aligned as allocators do.
class GuardedBlock {
  public:
    explicit GuardedBlock(std::size_t bytes) : bytes_(bytes), held_(bytes + 3 * kGuardBytes, kPoison) {
        const auto address = reinterpret_cast<std::uintptr_t>(held_.data() + kGuardBytes);
        first_ = kGuardBytes + (0 - address) % kGuardBytes;
    }
    void* data() { return held_.data() + first_; }
    std::size_t size() const { return bytes_; }
    bool is_intact() const {
        const auto poison = [](std::byte byte) { return byte == kPoison; };
        const auto first = held_.begin() + static_cast<std::ptrdiff_t>(first_);
        return std::all_of(held_.begin(), first, poison) &&
               std::all_of(first + static_cast<std::ptrdiff_t>(bytes_), held_.end(), poison);
    }

  private:
    static constexpr std::size_t kGuardBytes = 256;
    static constexpr std::byte kPoison{0x5A};
    std::size_t bytes_;
    std::size_t first_ = 0;
    std::vector<std::byte> held_;
};

// A graph's inputs and outputs, each in a block of its own.
class GuardedTensors {
  public:
    GuardedTensors(const GraphData& graph, const Bindings& bindings) : graph_(graph), bindings_(bindings) {
        for (const auto& [name, tensor] : bindings.tensors) {
            const Layout layout = input_layout(graph, name, bindings.rows);
            write_tensor(layout, tensor, add(name, layout));
        }
        for (const OutputInfo& output : graph.outputs())
            add(output.name, output_layout(graph, output.name, bindings.rows));
    }

    void give(Arguments* arguments) {
        for (const auto& [axis, extent] : bindings_.rows) arguments->rows(axis, extent);
        for (auto& [name, block] : blocks_) arguments->tensor(name, block.data());
    }
    Tensor read(const std::string& output) {
        return read_tensor(output_layout(graph_, output, bindings_.rows), blocks_.at(output).data());
    }
    bool are_intact() const {
        return std::all_of(blocks_.begin(), blocks_.end(), [](const auto& one) { return one.second.is_intact(); });
    }

  private:
    void* add(const std::string& name, const Layout& layout) {
        const auto bytes = static_cast<std::size_t>(buffer_elements(layout)) * size_bytes(layout.dtype);
        return blocks_.emplace(name, bytes).first->second.data();
    }

    const GraphData& graph_;
    const Bindings& bindings_;
    std::map<std::string, GuardedBlock> blocks_;
};

}  // namespace

TEST_CASE("a matrix product alone is the oracle's, for every pair of layouts and dtype") {
    Engine engine(Device("cpu"), kOptions);
    for (const Dtype dtype : {bf16, f16, f32, f64}) {
        for (const bool left_turned : {false, true}) {
            for (const bool right_turned : {false, true}) {
                Graph g;
                const Axis m = g.rows("m");
                const Axis n = g.columns("n", 37);
                const Axis k = g.columns("k", 19);
                const Axis rows_k = g.rows("rows_k");
                const Axis inner = left_turned ? rows_k : k;
                // A row axis stands first, so turning the left operand contracts rows.
                const Value a =
                    left_turned ? g.input("a", dtype, {rows_k, g.columns("mc", 23)}) : g.input("a", dtype, {m, k});
                const Value b = right_turned
                                    ? (left_turned ? g.input("b", dtype, {rows_k, n}) : g.input("b", dtype, {n, k}))
                                    : (left_turned ? g.input("b", dtype, {rows_k}) : g.input("b", dtype, {k, n}));
                g.output("y", matmul(a, b, {inner}));
                const Bindings bindings = random_inputs(*g.data(), all_rows(*g.data(), 11));
                const auto outputs = check(engine, g, bindings, {});
                // Of f64 the oracle's sums are exact but for one rounding, which no library's are.
                const double allowed = dtype == f64 ? 1e-14 : 0;
                CHECK_MESSAGE((within_bar(outputs) || outputs[0].report.most_off < allowed), describe(outputs));
            }
        }
    }
}

TEST_CASE("a fused linear cross-entropy and its gradients are the oracle's") {
    Engine engine(Device("cpu"), kOptions);
    for (const Dtype dtype : {bf16, f32}) {
        for (const std::int64_t tokens : {0, 1, 13}) {
            const Graph step = step_graph(loss_graph(509, 33, dtype));
            for (const std::int64_t rows : {0, 1, 2, 7, 13}) {
                CAPTURE(rows);
                CAPTURE(tokens);
                const auto outputs =
                    verify_several(engine.device(), engine.compile(step, nullptr, {.chunk_rows = rows}), *step.data(),
                                   [&](std::uint64_t launch) { return inputs_of(step, tokens, launch); });
                CHECK_MESSAGE(within_bar(outputs), describe(outputs));
            }
        }
    }
}

TEST_CASE("chunks of any size give the same rows, and gradients that differ in the order of their sums alone") {
    Engine engine(Device("cpu"), kOptions);
    const Graph step = step_graph(loss_graph(131, 33, bf16));
    const Bindings bindings = inputs_of(step, 14);
    const Tensors whole = run_chunked(engine, step, bindings, {.chunk_rows = 14});
    for (const std::int64_t rows : {7, 5, 2, 1}) {
        const Tensors parts = run_chunked(engine, step, bindings, {.chunk_rows = rows});
        CHECK(parts.at("d_hidden").values == whole.at("d_hidden").values);
        const Tensors again = run_chunked(engine, step, bindings, {.chunk_rows = rows});
        CHECK(again.at("d_weight").values == parts.at("d_weight").values);
        CHECK(again.at("loss").values == parts.at("loss").values);
    }
}

TEST_CASE("every fused linear loss and its gradients are the oracle's, divided into chunks or not") {
    Engine engine(Device("cpu"), kOptions);
    for (const CompositeInfo& row : fused_rows()) {
        CAPTURE(row.name);
        const Graph step = step_graph(row.name, {.columns = 37, .dtype = bf16, .options = kNarrow});
        CHECK(undivided(step) == "");
        for (const std::int64_t rows : {0, 1, 5}) {
            CAPTURE(rows);
            const Bindings bindings = inputs_of(step, rows);
            for (const std::int64_t chunk_rows : {0, 1, 16}) {
                CAPTURE(chunk_rows);
                const auto outputs = check(engine, step, bindings, {.chunk_rows = chunk_rows});
                CHECK_MESSAGE(within_bar(outputs), describe(outputs));
            }
        }
    }
}

TEST_CASE(
    "where every target is ignored, what a fused linear loss gives is the oracle's, and no gradient is NaN but a "
    "mean's") {
    Engine engine(Device("cpu"), kOptions);
    for (const CompositeInfo& row : fused_rows()) {
        CAPTURE(row.name);
        const Graph step = step_graph(row.name, {.columns = 37, .dtype = bf16, .options = kNarrow});
        const auto outputs = check(engine, step, ignoring_all(step), {.chunk_rows = 4});
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
}

TEST_CASE("a reference given as log-probabilities of its head is the reference by its head") {
    Engine engine(Device("cpu"), kOptions);
    OptionMap by_head = kNarrow;
    by_head["reference_width"] = "24";
    by_head["logp"] = "true";
    OptionMap given = kNarrow;
    given["with"] = "reference";
    const Graph head = make_graph("fused_linear_dpo", {.columns = 37, .dtype = f32, .options = by_head});
    const Graph alone = make_graph("fused_linear_dpo", {.columns = 37, .dtype = f32, .options = given});
    const Bindings bindings = inputs_of(head, 4);
    const Tensors both = run_chunked(engine, head, bindings, {});
    Bindings of_reference = bindings;
    of_reference.tensors.at("hidden") = bindings.tensors.at("reference_hidden");
    of_reference.tensors.at("weight") = bindings.tensors.at("reference_weight");
    Bindings with_given = bindings;
    with_given.tensors.erase("reference_weight");
    with_given.tensors.erase("reference_hidden");
    with_given.tensors["reference"] = run_chunked(engine, head, of_reference, {}).at("logp");
    CHECK(run_chunked(engine, alone, with_given, {}).at("loss").values == both.at("loss").values);
}

TEST_CASE("products find an aligned workspace wherever the caller's block lies, and write nothing past its end") {
    constexpr std::size_t kGuardBytes = 64;
    Engine engine(Device("cpu"), kOptions);
    const Graph loss = loss_graph(37, 24, bf16);
    const Executable executable = engine.compile(loss);
    const Bindings bindings = inputs_of(loss, 5);
    const Tensors expected = run(engine.device(), executable, *loss.data(), bindings);
    GuardedTensors tensors(*loss.data(), bindings);
    Arguments arguments = executable.arguments();
    tensors.give(&arguments);
    const std::size_t bytes = executable.workspace_bytes(arguments);
    std::vector<std::byte> block(bytes + 512 + kGuardBytes);
    auto* const first = block.data() + (0 - reinterpret_cast<std::uintptr_t>(block.data())) % 256;
    for (const std::size_t offset : {0, 64, 128, 192}) {
        std::fill(block.begin(), block.end(), std::byte{0x5A});
        arguments.workspace(first + offset, bytes);
        executable.launch(nullptr, arguments).or_throw();
        CHECK(std::all_of(first + offset + bytes, first + offset + bytes + kGuardBytes,
                          [](std::byte byte) { return byte == std::byte{0x5A}; }));
        CHECK(tensors.read("loss").values == expected.at("loss").values);
    }
}

TEST_CASE("what explain says of a program's workspace is what its launch takes") {
    Engine engine(Device("cpu"), kOptions);
    for (const std::string_view op : {"fused_linear_cross_entropy", "fused_linear_dpo"}) {
        // Of f32, so that the library on the CPU asks for nothing.
        const Graph step = step_graph(op, {.columns = 4096, .dtype = f32, .options = kNarrow});
        for (const std::int64_t limit : {std::int64_t{0}, std::int64_t{64} << 20}) {
            const ChunkOptions chunks = {.workspace_limit_bytes = limit};
            const Executable executable = engine.compile(step, nullptr, chunks);
            for (const std::int64_t rows : {1, 300, 5000}) {
                const Workspace said = workspace_of(compile(*step.data(), find_target("native"), {}, chunks), rows);
                Arguments arguments = executable.arguments();
                arguments.rows("tokens", rows);
                const auto taken = static_cast<std::int64_t>(executable.workspace_bytes(arguments));
                CHECK(taken >= said.total);
                CHECK(taken <= said.total + said.total / 50 + 65536);  // parts of sums, alignment
                CHECK((limit == 0 || rows < 5000 || said.loops[0].chunks.chunks > 1));
                CHECK((limit == 0 || taken <= limit));
            }
        }
    }
}

TEST_CASE("of pairs and sequences a chunk has as many as the gradient's memory holds the logits of") {
    for (const auto& [op, positions] : {std::pair("fused_linear_dpo", 2), {"fused_linear_kto", 4}}) {
        CAPTURE(op);
        const OptionMap options = {{"hidden", "4096"}, {"reference_width", "4096"}, {"length", "1024"}};
        const Graph step = step_graph(op, {.columns = 128256, .dtype = bf16, .options = options});
        const Workspace workspace = workspace_of(compile(*step.data(), find_target("sm_90a")), 16);
        CHECK(workspace.loops[0].chunks.lent);
        CHECK(workspace.loops[0].chunks.positions == positions);
        CHECK(workspace.chunk_bytes() < 100 << 20);
    }
}

bool is_of_chunk(const std::string& tensor) { return tensor.ends_with("_of_chunk"); }

TEST_CASE("the halves of a chunk of pairs lie together in every product, where their gradient is added up") {
    const Graph step = step_graph("fused_linear_dpo", {.columns = 4096, .dtype = bf16, .options = kNarrow});
    for (const Product& product : plan_graph(*step.data(), find_target("sm_90a"), {}).products) {
        CAPTURE(product.name);
        CHECK((is_of_chunk(product.left) || is_of_chunk(product.right) || is_of_chunk(product.result)));
    }
    const Plan low = plan_graph(*step.data(), find_target("sm_90a"), {.low_memory = true});
    for (const Temporary& one : low.temporaries) CHECK(!is_of_chunk(one.name));
}

bool reduces_columns(const GraphData& graph) {
    const std::vector<NodeId> live = graph.live_nodes();
    return std::any_of(live.begin(), live.end(), [&](NodeId id) {
        const Node& node = graph.node(id);
        return node.kind == NodeKind::kReduce && !graph.axis(node.reduced[0]).is_row;
    });
}

TEST_CASE("the gradient of wide logits takes its rows' numbers from the kernel of their log-probabilities") {
    Engine engine(Device("cpu"), kOptions);
    for (const std::string_view op :
         {"fused_linear_dpo", "fused_linear_orpo", "fused_linear_kto", "fused_linear_policy_loss"}) {
        CAPTURE(op);
        const Graph step = step_graph(op, {.columns = 9000, .dtype = bf16, .options = kNarrow});
        for (const Group& group : plan_graph(*step.data(), find_target("native"), {}).groups) {
            const auto& outputs = group.graph->outputs();
            const bool is_gradient = std::any_of(outputs.begin(), outputs.end(), [&](const OutputInfo& output) {
                return group.graph->column_count(group.graph->node(output.node)) == 9000;
            });
            CHECK(!(is_gradient && reduces_columns(*group.graph)));
        }
        for (const std::int64_t chunk_rows : {0, 1}) {
            const auto outputs = check(engine, step, inputs_of(step, 3), {.chunk_rows = chunk_rows});
            CHECK_MESSAGE(within_bar(outputs), describe(outputs));
        }
    }
}

// Of sequences of any lengths, one after the other.
Graph ragged_policy_loss(Importance importance) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis sequences = g.rows("sequences");
    const Axis width = g.columns("width", 24);
    const Value target = g.input("target", i64, {tokens});
    const Head head = {g.input("hidden", bf16, {tokens, width}),
                       g.input("weight", bf16, {g.columns("vocabulary", 37), width})};
    const Segments segments = {sequences, g.input("offsets", i64, {g.rows("ends", sequences, 1)})};
    const FusedLogProbability scored = fused_linear_log_probability(head, target);
    g.output("loss", policy_loss(scored.logp, g.input("old", f32, {tokens}), g.input("advantage", f32, {sequences}),
                                 scored.counted, std::nullopt, {.importance = importance}, segments)
                         .loss);
    return g;
}

// 11 tokens in 4 sequences, one of them empty.
Bindings ragged_inputs(const GraphData& graph) {
    Bindings bindings = random_inputs(graph, {{"tokens", 11}, {"sequences", 4}}, {.seed = 5, .scale = 0.25});
    bindings.tensors.at("offsets").values = {0, 3, 3, 8, 11};
    return bindings;
}

TEST_CASE(
    "ragged sequences whose tokens need no more than themselves are divided by token, loss and gradient in one pass") {
    Engine engine(Device("cpu"), kOptions);
    const Graph step =
        gradient(ragged_policy_loss(Importance::kToken), {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
    CHECK(undivided(step) == "");
    for (const std::int64_t rows : {0, 1, 4}) {
        const auto outputs = check(engine, step, ragged_inputs(*step.data()), {.chunk_rows = rows});
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
}

TEST_CASE("tokens that need their whole ragged sequence are divided where loss and gradient are made apart") {
    const Graph loss = ragged_policy_loss(Importance::kSequence);
    const Graph step = gradient(loss, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
    CHECK(undivided(step).find("not divided") != std::string::npos);
    const Differentiated both = differentiate(loss, {"hidden", "weight"});
    CHECK(undivided(both.forward) == "");
    CHECK(undivided(both.backward) == "");
}

TEST_CASE("a reference's logits are gone before the policy's are made, in the same memory") {
    for (const std::string_view op : {"fused_linear_dpo", "fused_linear_kto", "fused_linear_policy_loss"}) {
        CAPTURE(op);
        const Graph step = step_graph(op, {.columns = 4096, .dtype = bf16, .options = kNarrow});
        const Program program = compile(*step.data(), find_target("sm_90a"));
        const Workspace workspace = workspace_of(program, 1000);
        // Of a position there is one row of logits for each of its tokens, and little else.
        const ChunkBytes& bytes = workspace.loops[0].bytes;
        const std::int64_t logits_bytes = bytes.position_rows * 4096 * 2;
        CHECK(bytes.of_position == logits_bytes);
        CHECK(bytes.beside_position < logits_bytes / 20);
    }
}

// Of 4096 classes and 24 hidden numbers.
Graph weight_gradient_added_to() {
    const Graph whole = gradient(loss_graph(4096, 24, bf16), {"weight"}, {.joint = true, .unit_cotangent = true});
    Graph added(std::make_shared<GraphData>(whole.data()->axes()));
    std::map<NodeId, NodeId> mapped;
    for (const NodeId id : whole.data()->live_nodes())
        mapped[id] = added.data()->add_copy(whole.data()->node(id), [&](NodeId arg) { return mapped.at(arg); });
    for (OutputInfo output : whole.data()->outputs()) {
        output.node = mapped.at(output.node);
        output.accumulate = output.name == "d_weight";
        added.data()->add_output(output);
    }
    return added;
}

TEST_CASE(
    "a limit without room for accumulators makes gradients in parts, and where those cannot be rounds after every "
    "chunk; the plan says so") {
    const auto notes_of = [&](const Graph& step, std::int64_t limit) {
        const Plan plan = plan_graph(*step.data(), find_target("sm_90a"), {.workspace_limit_bytes = limit});
        return fmt::format("{}", fmt::join(plan.notes, "\n"));
    };
    const Graph step = step_graph("fused_linear_cross_entropy", {.columns = 4096, .dtype = bf16, .options = kNarrow});
    CHECK(notes_of(step, 1 << 20).find("chunks of vocabulary_blocks: 3 steps") != std::string::npos);
    CHECK(notes_of(step, 1 << 20).find("added up") == std::string::npos);
    CHECK(notes_of(step, 1 << 30).find("d_weight in f32") != std::string::npos);
    CHECK(notes_of(step, 1 << 30).find("vocabulary_blocks") == std::string::npos);
    const Graph added = weight_gradient_added_to();
    CHECK(notes_of(added, 1 << 20).find("rounded after every chunk: 1048576 bytes leave no room") != std::string::npos);
    CHECK(notes_of(added, 1 << 20).find("no gradient is made in parts of its columns") != std::string::npos);
}

// ---- Gradients in parts of their columns
// -----------------------------------------------------------------------------

TEST_CASE("in low memory every fused linear loss and its gradients are the oracle's, whatever the parts") {
    Engine engine(Device("cpu"), kOptions);
    for (const CompositeInfo& row : fused_rows()) {
        CAPTURE(row.name);
        const Graph step = step_graph(row.name, {.columns = 37, .dtype = bf16, .options = kNarrow});
        for (const std::int64_t columns : {0, 8, 37}) {
            CAPTURE(columns);
            const ChunkOptions chunks = {.chunk_rows = 3, .low_memory = true, .part_columns = columns};
            CHECK(plan_graph(*step.data(), find_target("native"), chunks).loops.size() == 2);
            for (const std::int64_t rows : {0, 1, 5}) {
                CAPTURE(rows);
                const auto outputs = check(engine, step, inputs_of(step, rows), chunks);
                CHECK_MESSAGE(within_bar(outputs), describe(outputs));
            }
        }
    }
}

TEST_CASE("in low memory cross-entropy with everything along the vocabulary or over it is the oracle's") {
    Engine engine(Device("cpu"), kOptions);
    for (const OptionMap& options :
         {OptionMap{{"bias", "true"}, {"weights", "classes"}, {"label_smoothing", "0.1"}},
          OptionMap{{"z_loss", "0.01"}, {"lse", "true"}, {"entropy", "true"}, {"argmax", "true"}, {"softcap", "4"}},
          OptionMap{{"weights", "both"}, {"accuracy", "true"}, {"logp", "true"}, {"temperature", "2"}}}) {
        const Graph step = step_graph(loss_graph(101, 24, bf16, options));
        const ChunkOptions chunks = {.chunk_rows = 2, .low_memory = true, .part_columns = 16};
        CHECK(plan_graph(*step.data(), find_target("native"), chunks).loops.size() == 2);
        const auto outputs = check(engine, step, inputs_of(step, 5), chunks);
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
}

TEST_CASE("in low memory rows that are all ignored give gradients of zero, or of NaN where the mean is one") {
    Engine engine(Device("cpu"), kOptions);
    for (const CompositeInfo& row : fused_rows()) {
        CAPTURE(row.name);
        const Graph step = step_graph(row.name, {.columns = 37, .dtype = bf16, .options = kNarrow});
        const auto outputs = check(engine, step, ignoring_all(step), {.low_memory = true, .part_columns = 8});
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
}

TEST_CASE("in low memory the loss and its gradients are the same bits at every launch") {
    Engine engine(Device("cpu"), kOptions);
    const Graph step = step_graph(loss_graph(131, 33, bf16));
    const Bindings bindings = inputs_of(step, 14);
    for (const std::int64_t columns : {131, 16, 1}) {
        const ChunkOptions chunks = {.chunk_rows = 5, .low_memory = true, .part_columns = columns};
        const Tensors once = run_chunked(engine, step, bindings, chunks);
        const Tensors again = run_chunked(engine, step, bindings, chunks);
        for (const std::string_view output : {"loss", "d_hidden", "d_weight"})
            CHECK(again.at(std::string(output)).values == once.at(std::string(output)).values);
    }
}

// Launched with guards around every tensor and the workspace; every output is as without them, and the oracle's.
void check_guarded(Engine& engine, const Graph& step, std::int64_t rows, const ChunkOptions& chunks) {
    const Bindings bindings = inputs_of(step, rows);
    const Executable executable = engine.compile(step, nullptr, chunks);
    GuardedTensors tensors(*step.data(), bindings);
    Arguments arguments = executable.arguments();
    tensors.give(&arguments);
    GuardedBlock workspace(executable.workspace_bytes(arguments));
    arguments.workspace(workspace.data(), workspace.size());
    executable.launch(nullptr, arguments).or_throw();
    CHECK(tensors.are_intact());
    CHECK(workspace.is_intact());
    const Tensors expected = run_chunked(engine, step, bindings, chunks);
    for (const OutputInfo& output : step.data()->outputs())
        CHECK(tensors.read(output.name).values == expected.at(output.name).values);
    const auto outputs = check(engine, step, bindings, chunks);
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("what a launch puts into an output's memory is gone, and nothing is written beside tensors") {
    Engine engine(Device("cpu"), kOptions);
    const Graph step = step_graph(loss_graph(300, 64, bf16));
    std::vector<ChunkOptions> ways;
    for (const std::int64_t limit : {0, 1}) {
        for (const std::int64_t columns : {0, 8, 48})
            ways.push_back({.workspace_limit_bytes = limit, .low_memory = true, .part_columns = columns});
    }
    // In d_weight's memory there is room for 64 rows.
    for (const std::int64_t chunk_rows : {5, 64, 70, 199}) {
        ways.push_back({.chunk_rows = chunk_rows});
        ways.push_back({.chunk_rows = chunk_rows, .low_memory = true});
    }
    for (const ChunkOptions& chunks : ways) {
        for (const std::int64_t rows : {1, 13, 200}) {
            CAPTURE(chunks.chunk_rows);
            CAPTURE(chunks.part_columns);
            CAPTURE(rows);
            check_guarded(engine, step, rows, chunks);
        }
    }
}

Workspace head_workspace(std::int64_t hidden, std::int64_t vocabulary, std::int64_t tokens,
                         const ChunkOptions& chunks) {
    const Graph step = step_graph(loss_graph(vocabulary, hidden, bf16));
    return workspace_of(compile(*step.data(), find_target("sm_90a"), {}, chunks), tokens);
}

TEST_CASE("low memory is 64 MiB beside the gradients, whatever the rows") {
    CHECK(head_workspace(4096, 128256, 8192, {.low_memory = true}).total <= 64 << 20);
    CHECK(head_workspace(4096, 128256, 32768, {.low_memory = true}).total <= 64 << 20);
    CHECK(head_workspace(2048, 151936, 16384, {.low_memory = true}).total <= 64 << 20);
    CHECK(head_workspace(4096, 128256, 8192, {.low_memory = true}).loops[0].chunks.lent);
}

TEST_CASE("chunks that add nothing up are of 1 GiB, those of a weight's gradient of 600 MiB") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis width = g.columns("width", 4096);
    const Axis inner = g.columns("inner", 14336);
    const Value x = g.input("x", bf16, {tokens, width});
    const Value raised = matmul(x, g.input("up", bf16, {inner, width}), {width});
    g.output("y", matmul(gelu(raised), g.input("down", bf16, {g.columns("out", 4096), inner}), {inner}));
    const Program program = compile(*g.data(), find_target("sm_90a"));
    const std::int64_t row_bytes = workspace_of(program, 1).total;
    CHECK(workspace_of(program, (1 << 30) / row_bytes - 1).loops[0].chunks.chunks == 1);
    CHECK(workspace_of(program, 1 << 20).total <= 1 << 30);
    CHECK(head_workspace(4096, 128256, 32768, {.round_each_chunk = true}).total <= 600 << 20);
}

TEST_CASE("a part of the columns is of 128 MiB to the nearest block") {
    const Graph step = step_graph(loss_graph(151936, 2048, bf16));
    const Program program = compile(*step.data(), find_target("sm_90a"), {}, {.low_memory = true});
    const ChunkCosts& costs = program.loops.back().costs;
    constexpr std::int64_t kNumber = 8;  // that a block has beside the logits of its 256 columns
    CHECK(costs.choose_blocks(594, 594, 256, (std::int64_t{8} << 20) + kNumber) == 16);
    CHECK(costs.choose_blocks(8, 594, 256, (std::int64_t{8} << 20) + kNumber) == 8);
    CHECK(costs.choose_blocks(7, 594, 256, (std::int64_t{8} << 20) + kNumber) == 7);
}

TEST_CASE("a chunk lies in the memory of a gradient that is rounded behind the loop, where there are several") {
    const Workspace large = head_workspace(4096, 128256, 32768, {});
    CHECK(large.loops[0].chunks.lent);
    CHECK(large.loops[0].chunks.positions == 4096);
    CHECK(large.total < (std::int64_t{128256} * 4096 * 4) + (1 << 20));
    const Workspace whole = head_workspace(4096, 128256, 8192, {});
    CHECK(whole.loops[0].chunks.chunks == 1);
    CHECK(!whole.loops[0].chunks.lent);
}

TEST_CASE("an accumulator lies partly in its gradient's memory where a chunk in the workspace is worth more there") {
    const Workspace narrow = head_workspace(2048, 151936, 16384, {});
    CHECK(narrow.loops[0].chunks.shared);
    CHECK(!narrow.loops[0].chunks.lent);
    CHECK(narrow.loops[0].chunks.positions == 4096);
    CHECK(narrow.total <= std::int64_t{151936} * 2048 * 4 + (600 << 20));
    CHECK(narrow.accumulators_taken < narrow.accumulators * 51 / 100);
}

TEST_CASE("a limit that has room for half an accumulator and some rows rounds a gradient once") {
    const std::int64_t sums_bytes = std::int64_t{128256} * 4096 * 4;
    const std::int64_t limit = sums_bytes * 3 / 4;
    const Workspace half = head_workspace(4096, 128256, 32768, {.workspace_limit_bytes = limit});
    CHECK(half.accumulators == sums_bytes);
    CHECK(half.loops.size() == 1);
    CHECK(half.loops[0].chunks.shared);
    CHECK(half.total <= limit);
    CHECK(half.loops[0].chunks.positions >= 1024);
}

// Room for the sums of `workspace` as far as they are in no result's memory, but not for all of them.
std::int64_t limit_for_shared(const Workspace& workspace, std::int64_t rows) {
    constexpr std::int64_t kReserve = std::int64_t{33} << 20;
    const ChunkBytes& bytes = workspace.loops[0].bytes;
    return kReserve + workspace.others + bytes.accumulators - bytes.shared +
           rows * (bytes.of_position + bytes.beside_position);
}

void check_shared(Engine& engine, const Graph& step, std::int64_t rows, const ChunkOptions& chunks) {
    const Program program = compile(*step.data(), find_target("native"), {}, chunks);
    CHECK(workspace_of(program, rows).loops[0].chunks.shared);
    check_guarded(engine, step, rows, chunks);
}

TEST_CASE("sums that lie partly in their gradient's memory are the oracle's, whatever the rows and columns") {
    Engine engine(Device("cpu"), kOptions);
    for (const Dtype dtype : {bf16, f16}) {
        for (const auto& [vocabulary, hidden] : {std::pair(1100, 24), {1037, 33}, {2053, 8}}) {
            CAPTURE(vocabulary);
            const Graph step = step_graph(loss_graph(vocabulary, hidden, dtype, {{"bias", "true"}}));
            // More rows than the gradient's memory holds the logits of.
            for (const std::int64_t rows : {100, 217}) check_shared(engine, step, rows, {.chunk_rows = hidden + 7});
        }
    }
}

TEST_CASE("sums in their gradient's memory are the bits of sums in the workspace") {
    Engine engine(Device("cpu"), kOptions);
    const Graph step = step_graph(loss_graph(1100, 24, bf16));
    const Workspace all = workspace_of(compile(*step.data(), find_target("native"), {}, {.chunk_rows = 16}), 100);
    CHECK(all.loops[0].chunks.lent);
    const ChunkOptions shared = {.workspace_limit_bytes = limit_for_shared(all, 16), .chunk_rows = 16};
    check_shared(engine, step, 100, shared);
    const Bindings bindings = inputs_of(step, 100);
    const Tensors expected = run_chunked(engine, step, bindings, {.chunk_rows = 16});
    const Tensors found = run_chunked(engine, step, bindings, shared);
    CHECK(found.at("d_weight").values == expected.at("d_weight").values);
}

TEST_CASE("of every fused linear loss the sums may lie in their gradient's memory") {
    Engine engine(Device("cpu"), kOptions);
    for (const CompositeInfo& row : fused_rows()) {
        CAPTURE(row.name);
        const Graph step = step_graph(row.name, {.columns = 1100, .dtype = bf16, .options = kNarrow});
        const Workspace all = workspace_of(compile(*step.data(), find_target("native"), {}, {.chunk_rows = 1}), 5);
        check_shared(engine, step, 5, {.workspace_limit_bytes = limit_for_shared(all, 1), .chunk_rows = 1});
    }
}

TEST_CASE("two heads that are trained have each its sums in its own gradient's memory") {
    Engine engine(Device("cpu"), kOptions);
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis width = g.columns("width", 24);
    const Axis vocabulary = g.columns("vocabulary", 1100);
    const Value hidden = g.input("hidden", bf16, {tokens, width});
    const Value first = linear(hidden, g.input("first", bf16, {vocabulary, width}));
    const Value second = linear(hidden, g.input("second", bf16, {vocabulary, width}));
    g.output("loss", sum(sum(cast(first, f32) * cast(second, f32), vocabulary), tokens));
    const Graph step = gradient(g, {"first", "second"}, {.joint = true, .unit_cotangent = true});
    const Workspace all = workspace_of(compile(*step.data(), find_target("native"), {}, {.chunk_rows = 50}), 100);
    CHECK(all.loops[0].bytes.shared == 2 * std::int64_t{512} * 24 * 4);
    check_shared(engine, step, 100, {.chunk_rows = 50});
}

TEST_CASE("a gradient that is added to what its output holds lends no memory") {
    const Graph added = weight_gradient_added_to();
    for (const bool accumulates : {false, true}) {
        const Graph step = accumulates ? added : gradient(loss_graph(4096, 24, bf16), {"weight"}, {.joint = true});
        const Plan plan = plan_graph(*step.data(), find_target("sm_90a"), {});
        REQUIRE(plan.loops.size() == 1);
        CHECK(plan.loops[0].lender == (accumulates ? "" : "d_weight"));
        for (const Product& product : plan.products)
            CHECK((product.rounded_rows >= 0) == (!accumulates && product.result == "d_weight"));
    }
}

TEST_CASE("a gradient is added to an f32 buffer chunk by chunk, without an accumulator") {
    const Graph step =
        gradient(loss_graph(131, 24, bf16), {}, {.joint = true, .unit_cotangent = true, .accumulate = {"weight"}});
    const Plan plan = plan_graph(*step.data(), find_target("sm_90a"), {});
    for (const Product& product : plan.products) CHECK(product.accumulator == "");
    Engine engine(Device("cpu"), kOptions);
    for (const std::int64_t rows : {0, 1, 4}) {
        const auto outputs = check(engine, step, inputs_of(step, 9), {.chunk_rows = rows});
        CHECK_MESSAGE(within_bar(outputs), describe(outputs));
    }
}

// ---- Values that are outputs, and read besides ----------------------------------------------------------------------

TEST_CASE("what a product or a kernel makes for an output and for a later step is stored once, in the output") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis width = g.columns("width", 24);
    const Axis inner = g.columns("inner", 40);
    const Axis out = g.columns("out", 16);
    const Value first =
        matmul(g.input("x", bf16, {tokens, width}), g.input("first_weight", bf16, {inner, width}), {width});
    const Value activated = silu(first);
    g.output("first", first);
    g.output("activated", activated);
    g.output("y", matmul(activated, g.input("weight", bf16, {out, inner}), {inner}));
    const Plan plan = plan_graph(*g.data(), find_target("sm_90a"), {});
    CHECK(plan.temporaries.empty());
    CHECK(plan.groups.size() == 1);
    Engine engine(Device("cpu"), kOptions);
    const auto outputs = check(engine, g, inputs_of(g, 7), {});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("a head's backward overwrites the logits that its forward saved, and takes no memory beside them") {
    const Graph loss = loss_graph(37, 24, bf16);
    const Differentiated both = differentiate(loss, {"hidden", "weight", "logits"},
                                              {.save = {"logits"}, .in_place = {"logits"}, .accumulate = {"weight"}});
    CHECK(plan_graph(*both.forward.data(), find_target("sm_90a"), {}).loops.empty());
    const Plan plan = plan_graph(*both.backward.data(), find_target("sm_90a"), {});
    CHECK(plan.loops.empty());
    CHECK(plan.products.size() == 2);
    for (const Temporary& one : plan.temporaries) CHECK(plan.graph->column_count({.axes = one.axes}) == 1);
    Engine engine(Device("cpu"), kOptions);
    const auto outputs = check(engine, both.backward, random_inputs(both, {{"tokens", 7}}), {});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

TEST_CASE("a gradient that reduces along the columns in its own operand is made in chunks of rows") {
    // Through a row's order of the logits' neighbours, which no part of the columns has.
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis width = g.columns("width", 24);
    const Axis vocabulary = g.columns("vocabulary", 40);
    const Value logits = linear(g.input("hidden", bf16, {tokens, width}), g.input("weight", bf16, {vocabulary, width}));
    const Value next = index(logits, vocabulary, (Coord(vocabulary) + 1) % 40);
    g.output("loss", sum(sum(cast(logits * next, f32)), tokens));
    const Graph step = gradient(g, {"weight"}, {.joint = true, .unit_cotangent = true});
    const Plan plan = plan_graph(*step.data(), find_target("native"), {.low_memory = true});
    CHECK(plan.loops.size() == 1);
    CHECK(plan.notes.back().find("is not elementwise along vocabulary") != std::string::npos);
    Engine engine(Device("cpu"), kOptions);
    const auto outputs = check(engine, step, inputs_of(step, 5), {.low_memory = true});
    CHECK_MESSAGE(within_bar(outputs), describe(outputs));
}

// ---- A vocabulary that ranks share
// -----------------------------------------------------------------------------------

constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kClasses = 37;
constexpr std::int64_t kFirstClass[] = {0, 16, kClasses};  // of two ranks, and behind the last
constexpr std::size_t kRanks = 2;
const std::vector<std::string> kNumbers = {"lse", "target_logit", "logit_sum"};

// One rank's columns of a head: its numbers of the rows, and its gradients from theirs, over the logits.
Differentiated head_of_rank(std::size_t rank) {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis width = g.columns("width", kWidth);
    const Axis vocabulary = g.columns("vocabulary", kFirstClass[rank + 1] - kFirstClass[rank]);
    const Value logits = linear(g.input("hidden", f32, {tokens, width}), g.input("weight", f32, {vocabulary, width}));
    const VocabularyPart part = vocabulary_part(logits, g.input("target", i64, {tokens}), kFirstClass[rank]);
    g.output("lse", part.lse);
    g.output("target_logit", part.target_logit);
    g.output("logit_sum", part.logit_sum);
    return differentiate(g, {"hidden", "weight", "logits"},
                         {.save = {"logits"}, .in_place = {"logits"}, .accumulate = {"weight"}});
}

// The loss of the numbers of all ranks, and its gradients by them.
Graph combined_ranks() {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Axis ranks = g.columns("ranks", kRanks);
    const auto gathered = [&](std::size_t number) { return g.input(kNumbers[number], f32, {tokens, ranks}); };
    const VocabularyParts parts = {gathered(0), gathered(1), gathered(2)};
    const Value target = g.input("target", i64, {tokens});
    g.output("loss", combine_vocabulary(parts, ranks, target, kClasses, {.label_smoothing = 0.1, .z_loss = 0.01}).loss);
    return gradient(g, kNumbers, {.joint = true, .unit_cotangent = true});
}

// What a rank has of the whole's inputs.
Bindings inputs_of_rank(const Bindings& whole, std::size_t rank) {
    Bindings own{.tensors = whole.tensors, .scalars = {}, .rows = whole.rows};
    Tensor& weight = own.tensors.at("weight");
    weight.extents[0] = kFirstClass[rank + 1] - kFirstClass[rank];
    const auto first = whole.tensors.at("weight").values.begin() + kFirstClass[rank] * kWidth;
    weight.values.assign(first, first + weight.extents[0] * kWidth);
    return own;
}

// {tokens, ranks} of a number of every rank's.
Tensor side_by_side(const std::vector<Tensors>& of_ranks, const std::string& name) {
    Tensor all{f32, {of_ranks[0].at(name).extents[0], kRanks}, {}};
    for (std::size_t row = 0; row < of_ranks[0].at(name).values.size(); ++row) {
        for (const Tensors& of_rank : of_ranks) all.values.push_back(of_rank.at(name).values[row]);
    }
    return all;
}

Tensor column(const Tensor& all, std::size_t rank) {
    Tensor found{f32, {all.extents[0]}, {}};
    for (std::size_t at = rank; at < all.values.size(); at += kRanks) found.values.push_back(all.values[at]);
    return found;
}

void check_close(const std::vector<double>& found, const std::vector<double>& wanted) {
    REQUIRE(found.size() == wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i)
        CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-5).scale(0.01));
}

TEST_CASE("ranks that share a head's vocabulary have the whole's loss and gradients, of three products each") {
    Engine engine(Device("cpu"), kOptions);
    const Graph whole = gradient(loss_graph(kClasses, kWidth, f32, {{"label_smoothing", "0.1"}, {"z_loss", "0.01"}}),
                                 {"hidden", "weight"}, {.of = {"loss"}, .joint = true, .unit_cotangent = true});
    const Bindings bindings = inputs_of(whole, 7);
    const Tensors expected = run_chunked(engine, whole, bindings, {});

    std::vector<Tensors> numbers;  // and what each rank saves
    for (std::size_t rank = 0; rank < kRanks; ++rank)
        numbers.push_back(run_chunked(engine, head_of_rank(rank).forward, inputs_of_rank(bindings, rank), {}));
    Bindings gathered{.tensors = {{"target", bindings.tensors.at("target")}}, .scalars = {}, .rows = bindings.rows};
    for (const std::string& name : kNumbers) gathered.tensors[name] = side_by_side(numbers, name);
    const Tensors loss = run_chunked(engine, combined_ranks(), gathered, {});
    CHECK(loss.at("loss").values[0] == doctest::Approx(expected.at("loss").values[0]));

    std::vector<double> d_hidden(expected.at("d_hidden").values.size());
    std::vector<double> d_weight;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        Bindings given = inputs_of_rank(bindings, rank);
        given.tensors.merge(numbers[rank]);
        for (const std::string& name : kNumbers) given.tensors["d_" + name] = column(loss.at("d_" + name), rank);
        Tensor& sum = given.tensors["d_weight"] = given.tensors.at("weight");
        std::fill(sum.values.begin(), sum.values.end(), 0.0);
        const Tensors found = run_chunked(engine, head_of_rank(rank).backward, given, {});
        for (std::size_t i = 0; i < d_hidden.size(); ++i) d_hidden[i] += found.at("d_hidden").values[i];
        const std::vector<double>& own = found.at("d_weight").values;
        d_weight.insert(d_weight.end(), own.begin(), own.end());
    }
    check_close(d_hidden, expected.at("d_hidden").values);
    check_close(d_weight, expected.at("d_weight").values);
}
