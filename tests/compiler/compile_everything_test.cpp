// Every schedule that is offered for an operation of the registry or its derived backward, compiled for every GPU
// target by that target's toolchain, spills nothing: the schedules the tuner may time, and any that the static rule may
// fall back to. No GPU takes part. A kernel that spills is refused here by its binary's own metadata, and mended where
// it was offered: in the family's limits or the register estimate (compiler/passes).
//
// The kernels that are taken for graphs written as texts are compiled too, all of them for one target.
//
// CI compiles a sample, half of it of backwards and the same each time; ./dev fuzz, which sets ROWJIT_FUZZ_SEEDS,
// compiles everything. ROWJIT_FUZZ_COMPILED names a file that keeps what each kernel's compile told: everything takes
// some hours of one core, and a kernel whose text and toolchain are as before tells the same again.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/environment.h"
#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "compiler/passes/passes.h"
#include "compiler/toolchain/toolchain.h"
#include "dsl/library/registry.h"
#include "rowjit/error.h"
#include "rowjit/gradient.h"
#include "runtime/build.h"
#include "tests/support/coverage.h"
#include "tests/support/written_graphs.h"

using namespace rowjit;

namespace {

// One kernel of one target; the source without its prelude, which all kernels of the target share.
struct Case {
    std::string name;
    std::string function;
    std::string body;
    int estimated_registers = 0;
};

// Less than a warp's vectors in the last round, words that no vector divides, powers of two with a row in a warp, a
// block and no block at all, and the widest vocabulary in use. A head is no wider than 256.
std::vector<std::int64_t> widths(const CompositeInfo& op) {
    if (op.columns == "head width") return {64, 100, 128, 256};
    return {100, 1002, 4096, 12290, 32768, 128256};
}

// The graphs of an op: its defaults at every width in both dtypes, and at one width each other word of each choice,
// each flag turned, and each number that is absent by default given.
std::vector<OpRequest> requests(const CompositeInfo& op) {
    std::vector<OpRequest> found;
    for (const std::int64_t columns : widths(op)) {
        for (const Dtype dtype : {bf16, f32}) found.push_back({columns, dtype, {}});
    }
    const auto vary = [&](std::string_view option, std::string_view value) {
        found.push_back({widths(op)[2], bf16, {{std::string(option), std::string(value)}}});
    };
    for (const OptionInfo& option : op.options) {
        if (option.type == OptionType::kFlag) vary(option.name, option.default_value == "true" ? "false" : "true");
        if (option.type == OptionType::kNumber && option.default_value.empty()) vary(option.name, "0.7");
        if (option.type != OptionType::kChoice) continue;
        std::string_view words = option.choices;
        while (!words.empty()) {
            const std::string_view word = words.substr(0, words.find(' '));
            words.remove_prefix(std::min(words.size(), word.size() + 1));
            // GPUs compute no f64.
            if (word != option.default_value && word != "f64") vary(option.name, word);
        }
    }
    return found;
}

// Nothing where the op refuses the request: a norm has no bias without a weight, a group divides the columns.
std::optional<Graph> graph_of(const CompositeInfo& op, const OpRequest& request) {
    try {
        return make_graph(op.name, request);
    } catch (const Error& error) {
        if (error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kInvalidGraph) return {};
        throw;
    }
}

std::string options_text(const OptionMap& options) {
    std::string text;
    for (const auto& [name, value] : options) text += fmt::format(" {}={}", name, value);
    return text;
}

// Every kernel once. Equal bodies are one: ops share kernels, and schedules that differ in nothing the kernel shows.
class Cases {
  public:
    explicit Cases(const Target& target) : target_(target) {}

    void add(const std::string& name, const Graph& graph) {
        for (const Group& group : plan_graph(*graph.data(), target_).groups) {
            for (const Schedule& schedule : legal_schedules(group, target_)) {
                const Offer<Kernel> kernel = build_kernel(group, schedule, target_);
                std::string body = emit_gpu_body(*kernel, target_);
                if (!seen_.insert(body).second) continue;
                cases_.push_back({fmt::format("{}: {}", name, print(schedule)), kernel->name, std::move(body),
                                  estimated_registers(*kernel, target_)});
            }
        }
    }

    std::vector<Case> take() { return std::move(cases_); }

  private:
    const Target& target_;
    std::vector<Case> cases_;
    std::set<std::string> seen_;
};

struct BothWays {
    std::vector<Case> forward;
    std::vector<Case> backward;
};

// A sample is drawn from one graph of so many of each operation, others for the next operation and target: to emit
// all schedules of all graphs for seven targets took half an hour of one core, to compile a sample of them five
// minutes.
constexpr std::size_t kOneGraphOf = 4;

// The cases of a target, and the `turn`-th share of them where a sample is drawn.
BothWays cases_of(const Target& target, std::size_t turn) {
    Cases forward(target);
    Cases backward(target);
    Coverage forwards("compile_everything_test", "every schedule compiles for the target and spills nothing",
                      target.name, "a sample");
    Coverage backwards("compile_everything_test backward", "derived backwards likewise", target.name, "a sample");
    for (const CompositeInfo& op : composites()) {
        ++turn;
        std::size_t graphs = 0;
        for (const OpRequest& request : requests(op)) {
            const std::optional<Graph> graph = graph_of(op, request);
            if (!graph) continue;
            ++graphs;
            const bool taken = is_taken(op.name) && (takes_everything() || (graphs + turn) % kOneGraphOf == 0);
            forwards.add(op.name, request);
            const std::string name = fmt::format("{} {} {}{}", op.name, request.columns, rowjit::name(request.dtype),
                                                 options_text(request.options));
            if (taken) forward.add(name, *graph);
            const std::vector<std::string> trained = trained_inputs(op.name, *graph);
            if (trained.empty()) continue;
            backwards.add(op.name, request);
            if (taken) backward.add(name + " backward", differentiate(*graph, trained).backward);
        }
        CHECK_MESSAGE(graphs >= 4, op.name, " takes ", graphs, " of the requests made of it");
    }
    CHECK(forwards.difference() == "");
    CHECK(backwards.difference() == "");
    return {forward.take(), backward.take()};
}

// A sample in which every family and residency has its share: the cases ordered by their schedules, and every n-th of
// them taken from a place that the seed chooses.
std::vector<Case> sample(std::vector<Case> cases, std::size_t count) {
    if (takes_everything() || cases.size() <= count) return cases;
    const auto schedule = [](const Case& one) { return one.name.substr(one.name.rfind(": ")); };
    std::mt19937 random(20261122);
    std::shuffle(cases.begin(), cases.end(), random);
    std::stable_sort(cases.begin(), cases.end(),
                     [&](const Case& a, const Case& b) { return schedule(a) < schedule(b); });
    std::vector<Case> chosen;
    const std::size_t first = random() % (cases.size() / count);
    for (std::size_t i = 0; i < count; ++i) chosen.push_back(std::move(cases[first + i * cases.size() / count]));
    return chosen;
}

constexpr std::string_view kSpills = "spills";
constexpr std::size_t kSpillingOneOf = 100;  // of AMD's, whose compilers are told of no remedy

struct Compiled {
    int registers = 0;
    std::int64_t spill_bytes = 0;
};

// What compiles told, kept by the digest of all that decides it: a line of digest, registers and spilled bytes for each
// kernel, appended whole, so that several processes may share the file. Refused kernels are not kept.
class KnownCompiles {
  public:
    KnownCompiles(const Target& target, const Toolchain& toolchain, std::string prelude)
        : target_(target), prelude_(std::move(prelude)) {
        about_ = fmt::format("{} {} {}", target.name, toolchain.name, toolchain.version);
        for (const std::string& option : compile_options(toolchain, target)) about_ += " " + option;
        const std::optional<std::string> path = environment_text("ROWJIT_FUZZ_COMPILED");
        if (!path) return;
        std::ifstream before(*path);
        std::string digest;
        Compiled told;
        while (before >> digest >> told.registers >> told.spill_bytes) known_[digest] = told;
        file_.open(*path, std::ios::app);
        CHECK_MESSAGE(file_.is_open(), *path, " cannot be written");
    }

    // Throws what compile_source throws.
    Compiled compile(const Case& one) {
        const std::string source = prelude_ + one.body;
        const std::string digest = sha256(about_ + source).hex();
        if (const auto found = known_.find(digest); found != known_.end()) {
            ++found_;
            return found->second;
        }
        const FunctionInfo info = compile_source({source, {one.function}}, target_).functions.at(0);
        if (file_.is_open()) {
            const std::lock_guard<std::mutex> lock(mutex_);
            file_ << fmt::format("{} {} {}\n", digest, info.registers, info.spill_bytes) << std::flush;
        }
        return {info.registers, info.spill_bytes};
    }

    std::size_t found() const { return found_; }

  private:
    const Target& target_;
    std::string prelude_;
    std::string about_;
    std::unordered_map<std::string, Compiled> known_;
    std::atomic<std::size_t> found_{0};
    std::mutex mutex_;
    std::ofstream file_;
};

// What is wrong with a compiled case, "" for nothing.
std::string fault(const Case& one, KnownCompiles& compiles) {
    try {
        const Compiled told = compiles.compile(one);
        if (told.spill_bytes == 0) return "";
        return fmt::format("{}: {} bytes of local memory a thread, {} registers, about {} expected", kSpills,
                           told.spill_bytes, told.registers, one.estimated_registers);
    } catch (const std::exception& error) {
        return error.what();
    }
}

// What is wrong with each, by as many threads as the machine has.
std::vector<std::string> faults_of(const std::vector<Case>& cases, KnownCompiles& compiles) {
    std::vector<std::string> faults(cases.size());
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        for (std::size_t i = next++; i < cases.size(); i = next++) faults[i] = fault(cases[i], compiles);
    };
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    return faults;
}

void check_everything(const std::vector<const char*>& targets, std::size_t sampled) {
    for (std::size_t place = 0; place < targets.size(); ++place) {
        const Target target = find_target(targets[place]);
        const Offer<Toolchain> toolchain = find_toolchain(target);
        if (!toolchain) {
            const bool required = environment_flag("ROWJIT_TESTS_REQUIRE_TOOLCHAINS");
            CHECK_MESSAGE(!required, target.name, ": a toolchain is required here: ", toolchain.reason());
            MESSAGE("SKIPPED for ", target.name, ": ", toolchain.reason());
            continue;
        }
        BothWays all = cases_of(target, place);
        std::vector<Case> cases = sample(std::move(all.forward), sampled / 2);
        for (Case& one : sample(std::move(all.backward), sampled / 2)) cases.push_back(std::move(one));
        REQUIRE(!cases.empty());
        KnownCompiles compiles(target, *toolchain, gpu_prelude(target));
        const std::vector<std::string> faults = faults_of(cases, compiles);
        std::size_t spilling = 0;
        for (std::size_t i = 0; i < cases.size(); ++i) {
            const bool spills = faults[i].starts_with(kSpills);
            CHECK_MESSAGE((faults[i].empty() || spills), target.name, ": ", cases[i].name, ": ", faults[i]);
            if (spills) MESSAGE(target.name, ": ", cases[i].name, ": ", faults[i]);
            spilling += spills ? 1 : 0;
        }
        MESSAGE(target.name, ": ", cases.size(), " kernels compiled, ", compiles.found(), " of them before, ", spilling,
                " spill");
        CHECK(spilling <= (target.backend == Backend::kCuda ? 0 : 1 + cases.size() / kSpillingOneOf));
    }
}

// The kernel's code with as many registers as the compiler likes, its loads issued each way.
std::vector<Artifact> every_way_of_loads(Kernel kernel, const Target& target) {
    std::vector<Artifact> ways;
    for (const LoadsTogether which :
         {LoadsTogether::kNot, LoadsTogether::kWhole, LoadsTogether::kAll, LoadsTogether::kAllAndNumbers}) {
        kernel.loads_together = which;
        ways.push_back(compile_source(emit_gpu(kernel, target), target));
    }
    return ways;
}

}  // namespace

TEST_CASE("every schedule compiles for NVIDIA and nothing spills") {
    check_everything({"sm_80", "sm_90a", "sm_100a"}, 60);
}

TEST_CASE("every schedule compiles for AMD by hipRTC and next to nothing spills") { check_everything({"gfx90a"}, 24); }

TEST_CASE("every schedule compiles for AMD by clang and next to nothing spills") {
    check_everything({"gfx942", "gfx1100", "gfx1201"}, 24);
}

TEST_CASE("the kernels of graphs that are written as texts compile, and so do those of their backwards") {
    const Target target = find_target("sm_90a");
    const Offer<Toolchain> toolchain = find_toolchain(target);
    if (!toolchain) {
        MESSAGE("SKIPPED: no toolchain for ", target.name);
        return;
    }
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, const Graph& graph) {
        for (const Step& step : compile(*graph.data(), target).steps)
            cases.push_back({fmt::format("{}: {}", name, step.kernel.name), step.kernel.name,
                             emit_gpu(step.kernel, target).text, 0});
    };
    for (const std::filesystem::path& file : written_graphs()) {
        const std::string name = file.filename().string();
        const Graph graph = Graph::parse(text_of(file), name);
        add(name, graph);
        if (has_gradient(file)) add(name + " backward", differentiate(graph).backward);
    }
    REQUIRE(cases.size() > 300);
    KnownCompiles compiles(target, *toolchain, "");
    const std::vector<std::string> faults = faults_of(cases, compiles);
    for (std::size_t i = 0; i < cases.size(); ++i)
        CHECK_MESSAGE((faults[i].empty() || faults[i].starts_with(kSpills)), cases[i].name, ": ", faults[i]);
}

TEST_CASE("the schedule that is taken spills nothing where another does not") {
    const Target target = find_target("sm_90a");
    if (!find_toolchain(target)) {
        MESSAGE("SKIPPED: no toolchain for ", target.name);
        return;
    }
    KernelCache cache(nullptr);
    // Each made the static rule's first choice spill.
    for (const auto& [op, columns] : {std::pair("group_norm", 4096), std::pair("add_layer_norm", 32768)}) {
        const Graph graph = make_graph(op, {columns, bf16, {}});
        const BuiltProgram built = build_without_spills(*graph.data(), target, {}, cache);
        REQUIRE(built.kernels.size() == built.program.steps.size());
        for (std::size_t i = 0; i < built.kernels.size(); ++i) {
            const Schedule& schedule = built.program.steps[i].kernel.schedule;
            CHECK_MESSAGE(built.kernels[i].artifact->functions.front().spill_bytes == 0, op, ": ", print(schedule));
            CHECK_MESSAGE(!built.kernels[i].from_cache, op, ": compiled here, and said to have been cached");
        }
    }
}

TEST_CASE("a thread gives a few registers for one more block where nothing is reduced, and where a block is alone") {
    const Target target = find_target("sm_90a");
    if (!find_toolchain(target)) {
        MESSAGE("SKIPPED: no toolchain for ", target.name);
        return;
    }
    std::set<std::string> gave;
    for (const auto& [op, columns] : {std::pair("rope_qk", 128), std::pair("dynamic_tanh", 4096),
                                      std::pair("hyper_post", 4096), std::pair("softmax", 4096)}) {
        for (const bool backward : {false, true}) {
            const Graph forward = make_graph(op, {columns, bf16, {}});
            const Graph graph = backward ? differentiate(forward).backward : forward;
            for (const Step& step : compile(*graph.data(), target).steps) {
                const Artifact made = compile_kernel(step.kernel, target);
                const auto blocks = [&](const Artifact& artifact) {
                    const int registers = (artifact.functions.front().registers + 7) / 8 * 8;
                    return target.registers_per_sm / (registers * step.kernel.block_threads());
                };
                CHECK(made.functions.front().spill_bytes == 0);
                const std::vector<Artifact> left_alone = every_way_of_loads(step.kernel, target);
                if (std::ranges::count(left_alone, made.binary, &Artifact::binary) > 0) continue;
                gave.insert(op);
                INFO(std::string(op), std::string(backward ? " backward " : " "), step.kernel.name);
                const auto [fewest, most] = std::ranges::minmax(left_alone | std::views::transform(blocks));
                CHECK(blocks(made) > fewest);
                CHECK(blocks(made) >= most);
                const bool reduces = step.kernel.schedule.family == Family::kRowReduction;
                CHECK((!reduces || fewest == 1));
            }
        }
    }
    CHECK(gave.contains("rope_qk"));
    CHECK(gave.contains("hyper_post"));
    CHECK_FALSE(gave.contains("softmax"));
}

TEST_CASE("a row's loads are issued together where a multiprocessor keeps as many blocks") {
    const Target target = find_target("sm_90a");
    if (!find_toolchain(target)) {
        MESSAGE("SKIPPED: no toolchain for ", target.name);
        return;
    }
    // How those of the kernel that is made are issued.
    const auto loads_together = [&](std::string_view op, std::int64_t columns, Dtype dtype, bool backward) {
        const Graph forward = make_graph(op, {columns, dtype, {}});
        const Graph graph = backward ? differentiate(forward).backward : forward;
        Kernel kernel = compile(*graph.data(), target).steps.at(0).kernel;
        const auto compiled = [&](LoadsTogether which) {
            kernel.loads_together = which;
            return compile_source(emit_gpu(kernel, target), target);
        };
        const Artifact apart = compiled(LoadsTogether::kNot);
        const Artifact made = compile_kernel(kernel, target);
        const auto blocks = [&](const Artifact& artifact) {
            return blocks_beside(kernel, target, artifact.functions.front().registers);
        };
        CHECK(made.functions.front().spill_bytes == 0);
        CHECK(blocks(made) >= blocks(apart));
        LoadsTogether way = LoadsTogether::kNot;
        for (const LoadsTogether which : {LoadsTogether::kWhole, LoadsTogether::kAll, LoadsTogether::kAllAndNumbers}) {
            const Artifact together = compiled(which);
            if (together.binary == made.binary) way = which;
            const bool as_many = blocks(together) == blocks(made) && together.functions.front().spill_bytes == 0;
            CHECK((!as_many || made.functions.front().load_waits <= together.functions.front().load_waits));
        }
        CHECK((way != LoadsTogether::kNot || made.binary == apart.binary));
        return way;
    };
    CHECK(loads_together("softmax", 65536, bf16, true) == LoadsTogether::kAllAndNumbers);
    CHECK(loads_together("softmax", 131072, f32, true) == LoadsTogether::kAllAndNumbers);
    loads_together("tvd", 131072, f32, true);
    loads_together("l2_norm", 128256, bf16, false);
    CHECK(loads_together("log_softmax", 65536, bf16, false) == LoadsTogether::kNot);  // for two blocks' registers
}

TEST_CASE("rows that are read in turns have a turn's loads together where clearly more is on its way") {
    const Target target = find_target("sm_90a");
    if (!find_toolchain(target)) {
        MESSAGE("SKIPPED: no toolchain for ", target.name);
        return;
    }
    for (const auto& [op, columns, dtype] :
         {std::tuple("top_k", 50304, f32), std::tuple("logsumexp", 262144, f32), std::tuple("logsumexp", 8192, bf16),
          std::tuple("kl_div", 32000, f32), std::tuple("selective_log_probability", 6144, f32)}) {
        CAPTURE(op);
        CAPTURE(columns);
        const Graph graph = make_graph(op, {columns, dtype, {}});
        const Kernel kernel = compile(*graph.data(), target).steps.at(0).kernel;
        REQUIRE(kernel.schedule.residency == Residency::kReload);
        const FunctionInfo made = compile_kernel(kernel, target).functions.front();
        const FunctionInfo apart = compile_source(emit_gpu(kernel, target), target).functions.front();
        CHECK(made.spill_bytes == 0);
        // As they are, unless it is worth while.
        const bool more = 4 * made.bytes_in_flight >= 5 * apart.bytes_in_flight;
        const bool sooner = dtype == bf16 && made.load_waits < apart.load_waits;
        const bool same = made.bytes_in_flight == apart.bytes_in_flight && made.load_waits == apart.load_waits &&
                          made.registers == apart.registers;
        CHECK((more || sooner || same));
        if (dtype == f32 && (columns == 50304 || columns == 262144)) CHECK(more);
    }
}

TEST_CASE("without a reduction loads are issued together where the code waits for some before it asks for others") {
    const Target target = find_target("sm_90a");
    if (!find_toolchain(target)) {
        MESSAGE("SKIPPED: no toolchain for ", target.name);
        return;
    }
    const auto kernel_of = [&](const Graph& graph) { return compile(*graph.data(), target).steps.at(0).kernel; };
    // As it is emitted it has its partner's vector behind the product with its own.
    const Graph rope = make_graph("rope", {128, f32, {}});
    Kernel rotated = kernel_of(differentiate(rope, trained_inputs("rope", rope)).backward);
    const FunctionInfo made = compile_kernel(rotated, target).functions.front();
    CHECK(blocks_beside(rotated, target, made.registers) == 8);
    CHECK(made.load_waits == 1);
    CHECK(compile_source(emit_gpu(rotated, target), target).functions.front().load_waits == 2);
    // Where waits would be no fewer nothing is changed.
    Kernel dropped = kernel_of(make_graph("dropout_add", {4096, bf16, {}}));
    const Artifact apart = compile_kernel(dropped, target);
    dropped.loads_together = LoadsTogether::kAll;
    CHECK(compile_source(emit_gpu(dropped, target), target).binary != apart.binary);
}
