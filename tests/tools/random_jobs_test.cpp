#include "tools/random_jobs.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "compiler/compile.h"
#include "compiler/emit/gpu.h"
#include "dsl/library/registry.h"
#include "dsl/traffic.h"
#include "tests/support/refusal.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kRows = 9;

std::vector<std::string> words_of(const JobOptions& within, std::int64_t count, std::uint64_t seed = 1) {
    std::vector<std::string> words;
    for (const RandomJob& drawn : draw_jobs(within, count, seed, kRows)) words.push_back(drawn.words);
    return words;
}

// The word behind an option, "" where the words do not have it.
std::string word_behind(const std::string& words, const std::string& option) {
    const std::size_t at = words.find("--" + option + " ");
    if (at == std::string::npos) return "";
    const std::size_t begin = at + option.size() + 3;
    return words.substr(begin, words.find(' ', begin) - begin);
}

std::set<std::string> words_behind(const std::vector<std::string>& jobs, const std::string& option) {
    std::set<std::string> found;
    for (const std::string& words : jobs) found.insert(word_behind(words, option));
    return found;
}

bool takes(const CompositeInfo& op, const OptionInfo& option, const std::string& value) {
    try {
        make_graph(op.name, {64, Dtype::kF32, {{std::string(option.name), value}}});
        return true;
    } catch (const Error&) {
        return false;
    }
}

bool is_number(const OptionInfo& option) {
    return option.type == OptionType::kInteger || option.type == OptionType::kNumber;
}

}  // namespace

TEST_CASE("every number that an operation takes has values to draw, some of which it takes at 64 columns") {
    for (const CompositeInfo& op : composites()) {
        CHECK_MESSAGE(!model_widths(op.columns).empty(), op.name, ": ", op.columns);
        for (const OptionInfo& option : op.options) {
            if (!is_number(option)) continue;
            std::string_view values = drawn_values(op.name, option.name);
            CHECK_MESSAGE(!values.empty(), op.name, ": ", option.name);
            int taken = 0;
            while (!values.empty()) {
                const std::size_t end = std::min(values.find(' '), values.size());
                taken += takes(op, option, std::string(values.substr(0, end))) ? 1 : 0;
                values.remove_prefix(std::min(end + 1, values.size()));
            }
            CHECK_MESSAGE(taken >= 2, op.name, ": ", option.name);
        }
    }
}

TEST_CASE("the same seed draws the same jobs, another seed others, and fewer jobs are the first of more") {
    const std::vector<std::string> jobs = words_of({}, 40);
    CHECK(words_of({}, 40) == jobs);
    CHECK(words_of({}, 40, 2) != jobs);
    CHECK(words_of({}, 15) == std::vector<std::string>(jobs.begin(), jobs.begin() + 15));
}

TEST_CASE("draws reach every operation, dtype and pass, narrow and wide rows, and launches are within the bytes") {
    JobOptions within;
    within.max_bytes = std::int64_t{1} << 21;
    std::set<std::string> ops, dtypes, names;
    std::int64_t narrowest = 1 << 20, widest = 0;
    std::size_t backwards = 0, joints = 0, odd = 0;
    const std::vector<RandomJob> jobs = draw_jobs(within, 1000, 7, kRows);
    for (const RandomJob& drawn : jobs) {
        const GraphData& graph = *drawn.job.graph.data();
        CHECK(least_bytes(graph, all_rows(graph, kRows)) <= within.max_bytes);
        const std::int64_t columns = std::stoll(word_behind(drawn.words, "columns"));
        narrowest = std::min(narrowest, columns);
        widest = std::max(widest, columns);
        odd += columns % 2 == 1 ? 1 : 0;
        backwards += mentions(drawn.words, " --backward") ? 1 : 0;
        joints += mentions(drawn.words, " --joint") ? 1 : 0;
        ops.insert(word_behind(drawn.words, "op"));
        dtypes.insert(drawn.job.dtype);
        names.insert(drawn.job.name);
    }
    CHECK(ops.size() == composites().size());
    CHECK(dtypes == std::set<std::string>{"bf16", "f16", "f32"});
    CHECK(names.size() == jobs.size());
    CHECK(std::ranges::none_of(names, [](const std::string& name) { return mentions(name, "=f64"); }));
    CHECK(narrowest == 1);
    CHECK(widest > 50000);
    CHECK(odd > 200);
    CHECK(backwards > 200);
    CHECK(joints > 200);
}

TEST_CASE("what is drawn is planned and written for every kind of GPU") {
    constexpr std::int64_t kDrawn = 400;
    JobOptions within;
    within.max_bytes = std::int64_t{1} << 21;
    const std::vector<RandomJob> jobs = draw_jobs(within, kDrawn, 11, kRows);
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = find_target(name);
        for (const RandomJob& drawn : jobs) {
            std::string failure;
            try {
                for (const Step& step : compile(*drawn.job.graph.data(), target).steps)
                    if (emit_gpu_body(step.kernel, target).empty()) failure = step.kernel.name + " is empty";
            } catch (const std::exception& error) {
                failure = error.what();
            }
            CHECK_MESSAGE(failure.empty(), name, ": ", drawn.words, ": ", failure);
        }
    }
}

TEST_CASE("operations, columns, dtypes, options and a pass that are named are the ones that are drawn") {
    JobOptions within;
    within.ops = {"rms_norm", "swiglu"};
    within.columns = {7, 96};
    within.dtypes = {"f16"};
    within.backward = true;
    const std::vector<std::string> jobs = words_of(within, 30);
    CHECK(words_behind(jobs, "op") == std::set<std::string>{"rms_norm", "swiglu"});
    CHECK(words_behind(jobs, "columns") == std::set<std::string>{"7", "96"});
    CHECK(words_behind(jobs, "dtype") == std::set<std::string>{"f16"});
    CHECK(std::all_of(jobs.begin(), jobs.end(), [](const auto& words) { return mentions(words, " --backward"); }));

    JobOptions heads;
    heads.ops = {"rope"};
    heads.options = {"heads=5"};
    const std::vector<std::string> of_five = words_of(heads, 10);
    CHECK(std::all_of(of_five.begin(), of_five.end(), [](const auto& words) { return mentions(words, " heads=5"); }));
    // Pairs of columns turn together.
    for (const std::string& words : of_five) {
        const bool some = mentions(words, "rotary=");
        CHECK_MESSAGE((some || std::stoll(word_behind(words, "columns")) % 2 == 0), words);
    }
}

TEST_CASE("what cannot be drawn from is refused") {
    const auto refused = [](const JobOptions& within) {
        return refusal(ErrorCode::kInvalidArgument, [&] { draw_jobs(within, 1, 1, kRows); });
    };
    JobOptions within;
    within.graph = "own.rj";
    CHECK(mentions(refused(within), "leave out --graph"));
    within = {};
    within.model = "config.json";
    CHECK(mentions(refused(within), "leave out --model"));
    within = {};
    within.backward = within.joint = true;
    CHECK(mentions(refused(within), "give one of them"));
    within = {};
    within.ops = {"bogus"};
    CHECK(mentions(refused(within), "'bogus'"));
    within.ops = {"silu"};
    within.dtypes = {"bf17"};
    CHECK(mentions(refusal(ErrorCode::kParse, [&] { draw_jobs(within, 1, 1, kRows); }), "'bf17'"));
    within.dtypes = {};
    within.max_bytes = 1;
    CHECK(mentions(refused(within), "--max-bytes"));
    within = {};
    within.ops = {"quantize"};
    within.joint = true;
    CHECK(mentions(refused(within), "has no backward"));
    within.joint = false;
    within.options = {"bogus=1"};
    CHECK(mentions(refused(within), "known: block, codes"));
}
