// The tuner on the CPU with processes that crash, hang, lie about times and kill the tuner itself: a shell script
// stands before the program that does the work. On a stub GPU the script says what compiling and timing came to.
#include "runtime/tuner.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "cache/entry.h"
#include "compiler/compile.h"
#include "compiler/plan/partial_reductions.h"
#include "compiler/plan/plan.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "runtime/candidates.h"
#include "runtime/tuning.h"
#include "tests/cache/fixture.h"
#include "tests/runtime/stubbed_engine.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

const RowExtents kRows = {{"tokens", 64}};

Graph softmax_graph() { return make_graph("softmax", {.columns = 256}); }

// A cache and a worker of a test's own. `hook` is shell text that sees the job as $job and may do what it likes instead
// of going on to the real worker.
class Workplace {
  public:
    explicit Workplace(const std::string& hook) : script_(directory_.path() + "/worker.sh") { set(hook); }

    void set(const std::string& hook) {
        write_file(script_, "job=$(cat)\nprintf '%s\\n' \"$job\" >> '" + log() + "'\n" + hook +
                                "\nprintf '%s' \"$job\" | '" ROWJIT_PROGRAM "' tune-worker\n");
    }

    std::vector<TunedKernel> tune(const Graph& graph, TuneOptions options = {}, const char* device = "cpu") const {
        Engine engine(Device(device), {.cache_directory = directory_.path() + "/cache"});
        options.worker = {"/bin/sh", script_};
        options.measure.rounds = 1;
        options.measure.target_ms = 0.1;
        return rowjit::tune(engine, *graph.data(), kRows, options);
    }

    // A file that the hook can answer with.
    std::string keep(const std::string& file, const std::string& bytes) const {
        write_file(directory_.path() + "/" + file, bytes);
        return directory_.path() + "/" + file;
    }

    // The jobs that name a schedule and, with `of_timing`, are to time it.
    std::int64_t jobs(const std::string& schedule, bool of_timing) const {
        std::ifstream lines(log());
        std::int64_t found = 0;
        for (std::string line; std::getline(lines, line);) {
            const bool timing = line.find("\"place\"") != std::string::npos;
            found += timing == of_timing && line.find('"' + schedule + '"') != std::string::npos ? 1 : 0;
        }
        return found;
    }

  private:
    std::string log() const { return directory_.path() + "/jobs"; }

    TemporaryDirectory directory_;
    std::string script_;
};

// The schedules that are tried, in their order.
std::vector<std::string> tried() {
    std::vector<std::string> texts;
    const Target target = Device("cpu").impl().target();
    for (const Schedule& schedule : legal_schedules(plan_graph(*softmax_graph().data(), target).groups[0], target))
        texts.push_back(print(schedule));
    return texts;
}

// In a worker's script: whether the job is to time, or to compile, and names the schedule.
std::string when_timing(const std::string& schedule, const std::string& then) {
    return "case \"$job\" in *'\"place\"'*) case \"$job\" in *'\"" + schedule + "\"'*) " + then + ";; esac;; esac";
}
std::string when_compiling(const std::string& schedule, const std::string& then) {
    return "case \"$job\" in *'\"place\"'*) ;; *'\"" + schedule + "\"'*) " + then + ";; esac";
}

// A worker's answer to a timing: these medians, in the candidates' order.
std::string answering(const std::vector<double>& medians_ms) {
    std::string lines;
    for (std::size_t i = 0; i < medians_ms.size(); ++i) {
        lines += fmt::format(
            "echo '{{\"candidate\":{},\"outcome\":{{\"rejected\":\"\",\"code\":0,\"timing\":{{\"samples_ms\":[{}],"
            "\"median_ms\":{},\"spread\":0}}}}}}'\n",
            i, medians_ms[i], medians_ms[i]);
    }
    return "case \"$job\" in *'\"place\"'*) " + lines + "exit 0;; esac";
}

// What a process answers to a compilation, of a kernel that spills so much of each thread.
std::string compiled_kernel(int spill_bytes) {
    Artifact artifact = stub_artifact("sm_90a");
    artifact.functions[0].spill_bytes = spill_bytes;
    return encode_entry({sha256("stub"), "stub", artifact});
}

// Tunes a graph of one kernel on a stub GPU, where kernels with some schedules spill and those that are timed take so
// long, in their order.
class StubbedTuning {
  public:
    explicit StubbedTuning(const std::vector<std::string>& spilling) {
        const std::string spills = place_.keep("spills", compiled_kernel(8));
        for (const std::string& schedule : spilling)
            compiling_ += when_compiling(schedule, "cat '" + spills + "'; exit 0") + "\n";
        compiling_ += "case \"$job\" in *'\"place\"'*) ;; *) cat '" + place_.keep("fits", compiled_kernel(0)) +
                      "'; exit 0;; esac\n";
    }

    TunedKernel tune(const Graph& graph, const std::vector<double>& medians_ms, const TuneOptions& options) {
        place_.set(compiling_ + answering(medians_ms));
        return place_.tune(graph, options, "cuda:0").at(0);
    }

  private:
    Workplace place_{""};
    std::string compiling_;
};

// Of many schedules.
Graph wide_softmax() { return make_graph("softmax", {.columns = 16384}); }

// The first of a graph's kernel's schedules on the stub GPU.
std::vector<std::string> first_of_gpu(const Graph& graph, std::size_t count) {
    const Target target = Device("cuda:0").impl().target();
    std::vector<std::string> texts;
    for (const Schedule& schedule : legal_schedules(plan_graph(*graph.data(), target).groups.at(0), target))
        texts.push_back(print(schedule));
    REQUIRE(texts.size() >= count);
    texts.resize(count);
    return texts;
}

bool was_timed(const TunedKernel& kernel, const std::string& schedule) {
    return std::any_of(kernel.timed.begin(), kernel.timed.end(),
                       [&](const TimedSchedule& timed) { return print(timed.schedule) == schedule; });
}

// The one schedule that was rejected, and why.
void check_only_rejected(const TunedKernel& kernel, const std::string& schedule, const std::string& why) {
    REQUIRE(kernel.rejected.size() == 1);
    CHECK(kernel.rejected[0].starts_with(schedule + ": "));
    CAPTURE(kernel.rejected[0]);
    CHECK(kernel.rejected[0].find(why) != std::string::npos);
    CHECK(kernel.timed.size() == tried().size() - 1);
    CHECK_FALSE(was_timed(kernel, schedule));
}

}  // namespace

TEST_CASE("candidates are compiled and timed by other processes, one for each and one for all") {
    const Workplace place("");
    const std::vector<TunedKernel> tuned = place.tune(softmax_graph());
    REQUIRE(tuned.size() == 1);
    CHECK(tuned[0].rejected.empty());
    CHECK(tuned[0].timed.size() == tried().size());
    for (const std::string& schedule : tried()) {
        CHECK(place.jobs(schedule, false) == 1);
        CHECK(place.jobs(schedule, true) == 1);
    }
}

TEST_CASE("a compiler that crashes costs one candidate, be it the static choice") {
    const std::string first = tried()[0];
    const Workplace place(when_compiling(first, "kill -SEGV $$"));
    const std::vector<TunedKernel> tuned = place.tune(softmax_graph());
    check_only_rejected(tuned[0], first, "signal 11");
    CHECK(print(tuned[0].schedule) != first);
}

TEST_CASE("a compiler that hangs costs one candidate and its time limit") {
    const std::string second = tried()[1];
    const Workplace place(when_compiling(second, "sleep 600"));
    const auto begun = std::chrono::steady_clock::now();
    const std::vector<TunedKernel> tuned = place.tune(softmax_graph(), {.limit = std::chrono::seconds(2)});
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(60));
    check_only_rejected(tuned[0], second, "said nothing for 2000 ms");
}

TEST_CASE("a kernel of which the process dies that times it costs one candidate, and the others are timed together") {
    const std::string second = tried()[1];
    const Workplace place(when_timing(second, "echo 0; echo 1; kill -KILL $$"));
    const std::vector<TunedKernel> tuned = place.tune(softmax_graph());
    check_only_rejected(tuned[0], second, "signal 9");
    CHECK(place.jobs(tried()[0], true) == 2);
}

TEST_CASE("a kernel that never ends costs one candidate and its time limit") {
    const std::string second = tried()[1];
    const Workplace place(when_timing(second, "echo 1; sleep 600"));
    check_only_rejected(place.tune(softmax_graph(), {.limit = std::chrono::seconds(2)})[0], second,
                        "said nothing for 2000 ms");
}

TEST_CASE("where nothing can be compiled the first candidate's error is thrown, and nothing is held against any") {
    Workplace place("exit 5");
    CHECK(refusal(ErrorCode::kEnvironment, [&] { place.tune(softmax_graph()); }).find("exit status 5") !=
          std::string::npos);
    place.set("");
    CHECK(place.tune(softmax_graph())[0].timed.size() == tried().size());
}

TEST_CASE("memory that is lacking for the timing is no candidate's fault and ends it") {
    Workplace place(when_timing(tried()[0], "echo 0; echo '{\"lacks\":\"8 GiB asked, 1 free\"}'; exit 5"));
    CHECK(mentions(refusal(ErrorCode::kEnvironment, [&] { place.tune(softmax_graph()); }), "8 GiB asked"));
    CHECK(place.jobs(tried()[0], true) == 1);
    place.set("");
    CHECK(place.tune(softmax_graph())[0].timed.size() == tried().size());
}

TEST_CASE("a kernel that would be planned in another way alone is tuned as it is") {
    const Graph rotation = Graph::parse(R"(
        rows n
        rows heads = 16
        columns d = 256
        input x: bf16[n, heads, d]
        input w: f32[d]
        input cosine: f32[n, 128]
        input sine: f32[n, 128]
        h = cast(x, f32)
        y = h * rsqrt(mean(h * h) + 1e-6) * (1 + w)
        p = index(y, n, heads, (d + 128) % 256)
        c = index(cosine, n, d % 128)
        s = index(sine, n, d % 128)
        output z = cast(y * c + select(iota(d) < 128, -p, p) * s, bf16))");
    const Target target = find_target("sm_90a");
    const Plan plan = plan_graph(*differentiate(rotation).backward.data(), target);
    REQUIRE(makes_parts(*plan.groups[0].graph));
    for (const Group& group : plan.groups) {
        if (adds_parts(*group.graph)) continue;
        CAPTURE(group.name);
        const Schedule schedule = legal_schedules(group, target).at(0);
        CHECK(alone(group, schedule, target).steps[0].kernel.schedule == schedule);
    }
}

TEST_CASE("what a loop of chunks rounds some rows at a time is tuned as rows of which nobody gave the number") {
    const Workplace place("");
    const Graph loss = make_graph("fused_linear_cross_entropy", {2000, bf16, {{"hidden", "16"}}});
    const Graph joint = gradient(loss, {"hidden", "weight"}, {.joint = true, .unit_cotangent = true});
    const Plan plan = plan_graph(*joint.data(), Device("cpu").impl().target());
    const auto sees_blocks = [](const Group& group) {
        return std::ranges::any_of(group.row_axes, [&](AxisId axis) { return group.graph->axis(axis).blocks > 0; });
    };
    REQUIRE(std::ranges::any_of(plan.groups, sees_blocks));
    const std::vector<TunedKernel> tuned = place.tune(joint, {.max_candidates = 1});
    const auto blocks = std::ranges::find_if(plan.groups, sees_blocks);
    CHECK(std::ranges::any_of(tuned, [&](const TunedKernel& one) { return one.kernel == blocks->name && one.ms > 0; }));
}

TEST_CASE("a tuner that is killed goes on where it was: nothing is compiled again, nothing rejected is tried again") {
    const std::string second = tried()[1];
    Workplace place(when_compiling(second, "kill -SEGV $$") + "\n" + when_timing(tried()[0], "kill -KILL $PPID"));
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        place.tune(softmax_graph());
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));

    place.set("");
    check_only_rejected(place.tune(softmax_graph())[0], second, "signal 11");
    for (const std::string& schedule : tried()) CHECK(place.jobs(schedule, false) == 1);
    CHECK(place.tune(softmax_graph())[0].from_database);
    CHECK(place.jobs(tried()[0], true) == 2);
}

TEST_CASE("a stored choice is replaced only by one that is clearly faster") {
    const std::vector<std::string> schedules = tried();
    std::vector<double> medians_ms(schedules.size(), 1.0);
    medians_ms[2] = 0.5;
    Workplace place(answering(medians_ms));
    CHECK(print(place.tune(softmax_graph())[0].schedule) == schedules[2]);

    // The static choice comes first, then the one that holds.
    medians_ms = std::vector<double>(schedules.size(), 1.0);
    medians_ms[0] = 0.495;
    medians_ms[1] = 0.5;
    place.set(answering(medians_ms));
    CHECK(print(place.tune(softmax_graph(), {.force = true})[0].schedule) == schedules[2]);
    medians_ms[0] = 0.45;
    place.set(answering(medians_ms));
    CHECK(print(place.tune(softmax_graph(), {.force = true})[0].schedule) == schedules[0]);
}

TEST_CASE("on a GPU the others are measured against the schedule that compile takes for the one offered first") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    // Of the schedule offered first the vectors do not divide what turns within a head.
    const Graph graph = Graph::parse(
        "rows tokens\ncolumns heads = 16\ncolumns d = 80\ninput x: bf16[tokens, heads, d]\n"
        "output y = x + index(x, tokens, heads, (d + 20) % 40 + (d / 40) * 40)\n");
    const std::string taken =
        print(compile(*graph.data(), Device("cuda:0").impl().target()).steps.at(0).kernel.schedule);
    StubbedTuning tuning({});
    const TunedKernel tuned = tuning.tune(graph, {1.0, 0.99, 0.985}, {.max_candidates = 3});
    CHECK(print(tuned.timed.at(0).schedule) == taken);
    CHECK(tuned.static_ms == 1.0);
    CHECK(print(tuned.schedule) == taken);
}

TEST_CASE("on a GPU the others are measured against the schedule that compile takes for one that spills") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    const std::vector<std::string> schedules = first_of_gpu(wide_softmax(), 4);
    StubbedTuning tuning({schedules[0], schedules[1]});
    // A tuning that ends where it times is gone on with.
    CHECK_THROWS_AS(tuning.tune(wide_softmax(), {}, {.max_candidates = 4}), Error);
    const TunedKernel tuned = tuning.tune(wide_softmax(), {1.0, 0.99}, {.max_candidates = 4});
    CHECK(tuned.rejected.size() == 2);
    CHECK(tuned.static_ms == 1.0);
    CHECK(print(tuned.schedule) == schedules[2]);

    // Also where an earlier tuning's choice holds.
    CHECK(print(tuning.tune(wide_softmax(), {1.0, 0.5}, {.max_candidates = 4, .force = true}).schedule) ==
          schedules[3]);
    const TunedKernel again = tuning.tune(wide_softmax(), {0.99, 1.0}, {.max_candidates = 4, .force = true});
    CHECK(print(again.timed.at(0).schedule) == schedules[2]);
    CHECK(again.static_ms == 0.99);
    CHECK(print(again.schedule) == schedules[3]);
}

TEST_CASE("on a GPU the schedule offered first is timed although it spills where compile takes it") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    const std::vector<std::string> schedules = first_of_gpu(wide_softmax(), 9);
    StubbedTuning tuning({schedules.begin(), schedules.end() - 1});
    const TunedKernel tuned = tuning.tune(wide_softmax(), {1.0, 0.5}, {.max_candidates = 9});
    CHECK(print(tuned.timed.at(0).schedule) == schedules[0]);
    CHECK(tuned.static_ms == 1.0);
    CHECK(print(tuned.schedule) == schedules[8]);
}

TEST_CASE(
    "a kernel of more numbers than a launch has tensors has the static choice, and others of its graph are tuned") {
    const Graph graph = make_graph("hyper_pre", {.columns = 512, .dtype = bf16});
    const Graph backward = differentiate(graph, trained_inputs("hyper_pre", graph)).backward;
    const Plan plan = plan_graph(*backward.data(), find_target("sm_90a"));
    const auto is_wide = [](const Group& group) { return group.graph->outputs().size() > kMostTensors; };
    CHECK(std::ranges::any_of(plan.groups, is_wide));
    CHECK(std::ranges::any_of(plan.groups, is_tuned));
    for (const Group& group : plan.groups) CHECK(!(is_wide(group) && is_tuned(group)));
}

TEST_CASE("a kernel is the same one when its graph has been through its text") {
    const Target target = find_target("sm_90a");
    const auto operations = [&](const Graph& graph) {
        std::vector<std::string> texts;
        for (const Group& group : plan_graph(*graph.data(), target).groups) texts.push_back(tuning_operation(group));
        return texts;
    };
    for (const CompositeInfo& row : composites()) {
        CAPTURE(row.name);
        const Graph graph = make_graph(row.name, {.columns = 64});
        CHECK(operations(graph) == operations(Graph::parse(graph.print())));
        const std::vector<std::string> trained = trained_inputs(row.name, graph);
        if (trained.empty()) continue;
        const Graph backward = gradient(graph, trained);
        CHECK(operations(backward) == operations(Graph::parse(backward.print())));
    }
}
