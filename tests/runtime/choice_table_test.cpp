// Measured choices that come from another machine, and where an engine looks for one. Needs no device.
#include "runtime/choice_table.h"

#include <doctest/doctest.h>

#include "base/digest.h"
#include "compiler/emit/gpu.h"
#include "compiler/toolchain/toolchain.h"
#include "dsl/library/registry.h"
#include "rowjit/gradient.h"
#include "runtime/tuning.h"
#include "tests/cache/fixture.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

Target h200() {
    Target target = find_target("sm_90a");
    target.label = "NVIDIA H200";
    return target;
}

Target h100() {
    Target target = find_target("sm_90a");
    target.label = "NVIDIA H100 80GB HBM3";
    return target;
}

Group norm_group() {
    return plan_graph(*make_graph("rms_norm", {.columns = 1024}).data(), find_target("sm_90a")).groups[0];
}

// Of the norm's legal schedules the one at `place`.
std::string legal_schedule(std::size_t place) { return print(legal_schedules(norm_group(), h200()).at(place)); }

ChoiceTable table_with(const std::string& schedule) {
    ChoiceTable table{"sm_90a", {"NVIDIA H200"}, "nvrtc 13.0", {}};
    table.put({"rms_norm: rj_y", sha256(tuning_operation(norm_group())).hex(), schedule, "16384x1024", 0.07, 0.08});
    return table;
}

}  // namespace

TEST_CASE("a table reads back as it was printed, and one choice stands for an operation") {
    ChoiceTable table = table_with("row_reduction keep=registers threads=32");
    table.put({"a norm", table.choices[0].operation, "row_reduction keep=registers threads=64", "1x1", 1, 2});
    table.put({"another", "00ff", "elementwise keep=reload", "1x1", 1, 2});
    REQUIRE(table.choices.size() == 2);
    const ChoiceTable again = parse_choice_table(print(table), "table");
    CHECK(print(again) == print(table));
    CHECK(again.find("00ff")->schedule == "elementwise keep=reload");
    table.remove("00ff");
    CHECK(table.find("00ff") == nullptr);
}

TEST_CASE("what is no table is refused by its name") {
    CHECK(mentions(refusal(ErrorCode::kParse, [] { parse_choice_table("{}", "mine.json"); }), "mine.json"));
    CHECK(mentions(refusal(ErrorCode::kParse, [] { parse_choice_table("{\"schema\": 9}", "mine.json"); }), "schema"));
}

TEST_CASE("a table is for the devices it names alone") {
    const ChoiceTable table = table_with("");
    CHECK(table.covers(h200()));
    Target other = h200();
    other.label = "NVIDIA GH200 480GB";
    CHECK_FALSE(table.covers(other));
    CHECK_FALSE(table.covers(find_target("sm_100a")));
}

TEST_CASE("every choice that comes with rowjit is a schedule, and they are for H100 and H200") {
    for (const ChoiceTable& table : shipped_choices()) {
        for (const TabledChoice& choice : table.choices) {
            CAPTURE(choice.kernel);
            CHECK(parse_schedule(choice.schedule));
            CHECK(parse_digest(choice.operation));
            CHECK(choice.ms < choice.static_ms);
        }
    }
    REQUIRE(shipped_choices().size() == 3);
    CHECK(shipped_choices()[0].covers(h100()));
    CHECK_FALSE(shipped_choices()[0].covers(h200()));
    CHECK_FALSE(shipped_choices()[1].covers(h100()));
    CHECK(shipped_choices()[1].covers(h200()));
    CHECK(shipped_choices()[2].covers(h100()));
    CHECK(shipped_choices()[2].covers(h200()));
    CHECK(shipped_choices()[2].covers(find_target("sm_90a")));
}

TEST_CASE("a device's own tuning comes before what was shipped, and what does not build is no choice") {
    const TemporaryDirectory directory;
    const auto database = std::make_shared<const TuningDb>(directory.path());
    const Group group = norm_group();
    const std::vector<ChoiceTable> none;
    CHECK_FALSE(measured_choice({.database = database, .shipped = &none}, h200(), group));

    const std::vector<ChoiceTable> tables = {table_with(legal_schedule(1))};
    const ChoiceSources sources{.database = database, .shipped = &tables};
    const auto shipped = measured_choice(sources, h200(), group);
    REQUIRE(shipped);
    CHECK(print(shipped->schedule) == legal_schedule(1));
    CHECK(shipped->source == ChoiceSource::kShipped);
    const std::vector<ChoiceTable> no_schedule = {table_with("row_reduction keep=registers vector=8")};
    CHECK_FALSE(measured_choice({.database = database, .shipped = &no_schedule}, h200(), group));

    TuningRecord record{.key = tuning_key(group, h200())};
    database->put(record);  // a tuning that was interrupted
    CHECK(measured_choice(sources, h200(), group)->source == ChoiceSource::kShipped);
    record.choice = legal_schedule(2);
    database->put(record);
    const auto tuned = measured_choice(sources, h200(), group);
    CHECK(print(tuned->schedule) == legal_schedule(2));
    CHECK(tuned->source == ChoiceSource::kTuned);
}

TEST_CASE("a pinned table decides in place of what this machine and bundles have measured") {
    const TemporaryDirectory directory;
    const auto database = std::make_shared<const TuningDb>(directory.path());
    const Group group = norm_group();
    database->put({.key = tuning_key(group, h200()), .choice = legal_schedule(2)});
    const std::vector<ChoiceTable> tables = {table_with(legal_schedule(1))};
    ChoiceSources sources{.database = database, .pinned = table_with(legal_schedule(3)), .shipped = &tables};
    const auto pinned = measured_choice(sources, h200(), group);
    REQUIRE(pinned);
    CHECK(print(pinned->schedule) == legal_schedule(3));
    CHECK(pinned->source == ChoiceSource::kPinned);
    sources.pinned->choices.clear();
    CHECK(measured_choice(sources, h200(), group)->source == ChoiceSource::kShipped);
}

TEST_CASE("a device's own table comes before its architecture's where kernels can be compiled") {
    ChoiceTable of_h100 = table_with(legal_schedule(1));
    of_h100.devices = {h100().label};
    ChoiceTable of_both = table_with(legal_schedule(2));
    of_both.devices.push_back(find_target("sm_90a").label);
    of_both.devices.emplace_back("NVIDIA H100");
    const std::vector<ChoiceTable> tables = {of_h100, of_both};
    const ChoiceSources sources{.database = std::make_shared<const TuningDb>(""), .shipped = &tables};
    const Group group = norm_group();
    const std::size_t on_h100 = find_toolchain(h100()) ? 1 : 2;
    CHECK(print(measured_choice(sources, h100(), group)->schedule) == legal_schedule(on_h100));
    CHECK(print(measured_choice(sources, h200(), group)->schedule) == legal_schedule(2));
    CHECK(print(measured_choice(sources, find_target("sm_90a"), group)->schedule) == legal_schedule(2));
}

// What their drivers report: an H100's memory of 2619 MHz and 5120 bits, an H200's of 3201 and 6144.
TEST_CASE("what is compiled for an architecture is what its GPUs ask for, whichever they are") {
    const Target of_architecture = find_target("sm_90a");
    Target of_h200 = h200();
    of_h200.l2_bytes = std::int64_t{60} << 20;
    of_h200.bandwidth_gbps = 4278;
    Target of_h100 = h100();
    of_h100.bandwidth_gbps = 2916;
    std::vector<ChoiceTable> tables = shipped_choices();
    std::erase_if(tables, [&](const ChoiceTable& table) { return !table.covers(of_architecture); });
    const ChoiceSources sources{.database = std::make_shared<const TuningDb>(""), .shipped = &tables};
    const auto sources_of = [&](const GraphData& graph, const Target& target) {
        std::string text;
        for (const Step& step : compile(graph, target, tuned_choice(sources, target)).steps)
            text += emit_gpu_body(step.kernel, target);
        return text;
    };
    for (const CompositeInfo& op : composites()) {
        if (op.name.starts_with("fused_linear") || op.name == "hyper_pre") continue;  // which plan for seconds
        CAPTURE(op.name);
        const Graph forward = make_graph(op.name, {.columns = 4096});
        std::vector<Graph> graphs = {forward};
        if (const std::vector<std::string> trained = trained_inputs(op.name, forward); !trained.empty())
            graphs.push_back(differentiate(forward, trained).backward);
        for (const Graph& graph : graphs) {
            const std::string expected = sources_of(*graph.data(), of_architecture);
            CHECK(sources_of(*graph.data(), of_h200) == expected);
            CHECK(sources_of(*graph.data(), of_h100) == expected);
        }
    }
}
