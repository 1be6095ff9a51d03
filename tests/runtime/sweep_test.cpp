// Every operation of the registry on the CPU, in every dtype and at every width that models have, against the oracle's
// bar: padded rows at odd strides, no rows, infinities, NaN, rows of one extreme value, and targets that are all
// ignored.
//
// CI takes a few widths of each operation and dtype, each width with several of them; ./dev fuzz, which sets
// ROWJIT_FUZZ_SEEDS, takes everything, and every option besides.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "runtime/verify.h"
#include "tests/support/coverage.h"

using namespace rowjit;

namespace {

constexpr std::array<std::int64_t, 26> kWidths = {1,     2,     3,     7,     31,     64,     100,    127,   128,
                                                  129,   1000,  1024,  2880,  4096,   5120,   8192,   11008, 14336,
                                                  32000, 32768, 50257, 65536, 128256, 131072, 151936, 262144};
constexpr std::size_t kSampledWidths = 2;  // of each operation and dtype
constexpr std::size_t kSampleStep = 7;     // no divisor of the number of widths: the samples walk through all of them
// Of a tensor. Of few elements eager's largest error is chance: another order of three terms, as right as eager's, can
// be a unit beyond it. And the oracle takes its time.
constexpr std::int64_t kFewestElements = 1024;
constexpr std::int64_t kMostElements = std::int64_t{1} << 18;
// At 262,144 columns a single f16 row of layer norm has some fifteen elements that are the difference of f32 terms 2^16
// times larger; which of them eager gets right is chance, and how right.
constexpr std::int64_t kWidestSingleRow = 151936;

// A loss is one number, made of terms that cancel: how many units in its last place are lost, by eager and by a kernel,
// is chance in each launch, and more the nearer to 0 it happens to be. So there are several launches, and where
// eager was lucky in all of them the unit is that of the largest loss among them.
constexpr std::array<std::string_view, 10> kLosses = {
    "kl_div", "reverse_kl", "jsd", "tvd", "dpo", "combine_vocabulary", "cpo", "orpo", "kto", "policy_loss"};
// Of a row, a weight for each of a few states is a number of that kind: it moves all columns.
constexpr std::string_view kWeighsRows = "attention_residual";
constexpr std::uint64_t kLaunchesOfLoss = 16;

// Of f32, a library's sums over a head's width are some units from the oracle's, which rounds them once.
constexpr double kUnitsOfLoss = 1;
constexpr double kUnitsOfFusedLoss = 8;

bool is_close_loss(const ErrorReport& report, double units) {
    return std::isfinite(report.max_error) &&
           report.most_off <= report.eager_most_off + units * ulp(f32, report.largest);
}

// Behind a head's product or not.
constexpr std::string_view kFused = "fused_linear_";

bool is_loss(std::string_view op) {
    if (op.starts_with(kFused)) op.remove_prefix(kFused.size());
    return std::find(kLosses.begin(), kLosses.end(), op) != kLosses.end();
}

struct Job {
    std::string name;
    std::string op;
    OpRequest request;
};

// The oracle's products take long; wider rows of logits are the row losses' to cover.
constexpr std::int64_t kWidestProduct = 1024;

// A head is no wider than 512 and has an even number of columns.
bool fits(const CompositeInfo& op, std::int64_t width) {
    if (op.name.starts_with(kFused) && width > kWidestProduct) return false;
    return op.columns != "head width" || (width % 2 == 0 && width <= 512);
}

std::vector<std::int64_t> widths_of(const CompositeInfo& op) {
    std::vector<std::int64_t> widths;
    std::copy_if(kWidths.begin(), kWidths.end(), std::back_inserter(widths),
                 [&](std::int64_t width) { return fits(op, width); });
    return widths;
}

// The option's values besides its default.
std::vector<std::string> other_values(const OptionInfo& option) {
    if (option.type == OptionType::kFlag) return {option.default_value == "true" ? "false" : "true"};
    if (option.type == OptionType::kNumber) return {"0.75"};
    std::vector<std::string> values;
    std::string_view choices = option.choices;
    while (option.type == OptionType::kChoice && !choices.empty()) {
        const std::string_view word = choices.substr(0, choices.find(' '));
        choices.remove_prefix(std::min(choices.size(), word.size() + 1));
        if (word != option.default_value && word != "f64") values.emplace_back(word);
    }
    return values;
}

std::vector<Job> jobs() {
    std::vector<Job> found;
    std::size_t next = 0;  // of the walk through the widths
    for (const CompositeInfo& op : composites()) {
        const std::vector<std::int64_t> widths = widths_of(op);
        for (const Dtype dtype : {bf16, f16, f32}) {
            const auto add = [&](std::int64_t columns, const OptionMap& options) {
                std::string name = fmt::format("{} {} {}", op.name, columns, rowjit::name(dtype));
                for (const auto& [key, value] : options) name += fmt::format(" {}={}", key, value);
                found.push_back({std::move(name), std::string(op.name), {columns, dtype, options}});
            };
            const std::size_t count = takes_everything() ? widths.size() : std::min(kSampledWidths, widths.size());
            for (std::size_t i = 0; i < count; ++i, next += kSampleStep) add(widths[next % widths.size()], {});
            if (!takes_everything() && dtype != f32) continue;
            for (const OptionInfo& option : op.options) {
                for (const std::string& value : other_values(option)) {
                    for (const std::int64_t columns : {2, 128, 1000}) {
                        if (!fits(op, columns) || (!takes_everything() && columns != 128)) continue;
                        add(columns, {{std::string(option.name), value}});
                    }
                }
            }
        }
    }
    return found;
}

// Rows of one value each: what no random row is.
void fill_rows(Bindings& bindings) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (auto& [name, tensor] : bindings.tensors) {
        if (!is_float(tensor.dtype) || tensor.extents.size() < 2) continue;
        const double huge = tensor.dtype == f16 ? 6e4 : 3e38;
        const double tiny = tensor.dtype == f16 ? 6e-8 : 1e-39;
        const std::array<double, 7> values = {
            -infinity, infinity, std::numeric_limits<double>::quiet_NaN(), huge, -huge, tiny, 0};
        const std::size_t row =
            tensor.values.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, tensor.extents[0]));
        for (std::size_t i = 0; i < tensor.values.size(); ++i)
            tensor.values[i] = round_to(tensor.dtype, values[i / row % values.size()]);
    }
}

void ignore_targets(Bindings& bindings) {
    for (auto& [name, tensor] : bindings.tensors) {
        if (is_integer(tensor.dtype)) std::fill(tensor.values.begin(), tensor.values.end(), -100);
    }
}

struct Inputs {
    std::string_view name;
    std::int64_t rows;  // more where they are narrow, fewer where they are wide
    std::int64_t row_padding;
    RandomOptions random;
    void (*change)(Bindings&) = nullptr;
};

const std::array kInputs = {
    Inputs{"rows at odd strides", 7, 3, {.seed = 11, .out_of_range = true}},
    Inputs{"one row", 1, 0, {.seed = 12}},
    Inputs{"no rows", 0, 5, {.seed = 13}},
    Inputs{"extreme values", 9, 1, {.seed = 14, .out_of_range = true, .extremes = true}},
    Inputs{"rows of one value", 7, 0, {.seed = 15}, fill_rows},
    Inputs{"targets ignored", 4, 0, {.seed = 16}, ignore_targets},
};

struct Excess {
    double most = -std::numeric_limits<double>::infinity();
    std::string where;
};

// What the workers found, by operation and dtype.
class Findings {
  public:
    void add(const Job& job, std::string_view inputs, const Verification& output, bool one_number) {
        const std::lock_guard lock(mutex_);
        ++checks_;
        coverage_.add(job.op, job.request);
        const ErrorReport& report = output.report;
        const std::string where = fmt::format("{}, {}, {}", job.name, inputs, output.output);
        const bool close =
            report.within_bar || (is_loss(job.op) && one_number &&
                                  is_close_loss(report, job.op.starts_with(kFused) ? kUnitsOfFusedLoss : kUnitsOfLoss));
        if (!close) wrong_.push_back(fmt::format("{}: {}", where, describe(report)));
        const double excess = report.max_error - report.eager_max_error;
        Excess& worst = excess_[fmt::format("{} {}", job.op, name(job.request.dtype))];
        if (excess > worst.most) worst = {excess, where};
    }
    void add_failure(const Job& job, std::string_view inputs, const std::exception& error) {
        const std::lock_guard lock(mutex_);
        wrong_.push_back(fmt::format("{}, {}: {}", job.name, inputs, error.what()));
    }

    void add_refusal() {
        const std::lock_guard lock(mutex_);
        ++refused_;
    }

    std::size_t checks() const { return checks_; }
    const Coverage& coverage() const { return coverage_; }
    std::size_t refused() const { return refused_; }
    const std::vector<std::string>& wrong() const { return wrong_; }
    const std::map<std::string, Excess>& excess() const { return excess_; }

  private:
    std::mutex mutex_;
    std::size_t checks_ = 0;
    Coverage coverage_ = {"sweep_test", "kernels against the oracle's bar, on ordinary and on extreme rows", "cpu",
                          "a sample"};
    std::size_t refused_ = 0;
    std::vector<std::string> wrong_;
    std::map<std::string, Excess> excess_;
};

// Of the widest tensor: a group norm's has many groups.
std::int64_t elements_of_row(const GraphData& graph) {
    std::int64_t most = 1;
    const RowExtents one = all_rows(graph, 1);
    for (NodeId id = 0; id < graph.size(); ++id) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kInput || graph.row_axes(node).empty()) continue;
        most = std::max(most, element_count(input_layout(graph, node.name, one).extents));
    }
    return most;
}

std::int64_t rows_of(std::int64_t wanted, std::int64_t columns) {
    if (wanted <= 1) return wanted;
    return std::clamp(wanted, (kFewestElements + columns - 1) / columns,
                      std::max<std::int64_t>({2, kFewestElements / columns + 1, kMostElements / columns}));
}

// One launch of extreme values: sums of huge values of both signs overflow, or not, by the order they are taken in.
std::uint64_t launch_count(const Job& job, const Inputs& inputs) {
    return (is_loss(job.op) || job.op == kWeighsRows) && !inputs.random.extremes && inputs.change == nullptr
               ? kLaunchesOfLoss
               : 1;
}

std::vector<Bindings> launches(const Job& job, const GraphData& graph, const Inputs& inputs) {
    const RowExtents rows = all_rows(graph, rows_of(inputs.rows, elements_of_row(graph)));
    std::vector<Bindings> found;
    for (std::uint64_t i = 0; i < launch_count(job, inputs); ++i) {
        RandomOptions random = inputs.random;
        random.seed += 100 * i;
        // Ratios of probabilities under logits of 64 standard normal products are of any size.
        if (job.op == "fused_linear_policy_loss") random.scale = 0.25;
        // As scores of a row of some thousand standard normal columns are: one state would have all the weight.
        if (job.op == kWeighsRows) random.scale = 0.25;
        found.push_back(random_inputs(graph, rows, random));
        if (inputs.change != nullptr) inputs.change(found.back());
    }
    return found;
}

void check(Engine& engine, const Job& job, Findings* findings) {
    std::string_view inputs = "compiling";
    try {
        const Graph graph = make_graph(job.op, job.request);
        const Executable executable = engine.compile(graph);
        const bool has_targets = job.op == "cross_entropy";
        for (const Inputs& one : kInputs) {
            if (one.change == ignore_targets && !has_targets) continue;
            if (one.rows == 1 && job.request.columns > kWidestSingleRow) continue;
            inputs = one.name;
            const std::vector<Verification> outputs =
                verify(engine.device(), executable, *graph.data(), launches(job, *graph.data(), one),
                       {.row_padding = one.row_padding});
            for (std::size_t i = 0; i < outputs.size(); ++i) {
                const NodeId node = graph.data()->outputs()[i].node;
                findings->add(job, inputs, outputs[i], graph.data()->node(node).axes.empty());
            }
        }
    } catch (const Error& error) {
        // An operation refuses some widths and some options without another.
        const bool by_op = error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kInvalidGraph;
        if (inputs == "compiling" && by_op) {
            findings->add_refusal();
        } else {
            findings->add_failure(job, inputs, error);
        }
    } catch (const std::exception& error) {
        findings->add_failure(job, inputs, error);
    }
}

}  // namespace

TEST_CASE("every operation in every dtype is within the bar at every width, on ordinary and on extreme rows") {
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    const std::vector<Job> all = jobs();
    Findings findings;
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
        workers.emplace_back([&] {
            for (std::size_t at = next++; at < all.size(); at = next++) check(engine, all[at], &findings);
        });
    }
    workers.clear();
    for (const std::string& wrong : findings.wrong()) FAIL_CHECK(wrong);
    for (const auto& [op, excess] : findings.excess())
        MESSAGE(op, ": at most ", excess.most, " units beyond eager (", excess.where, ")");
    CHECK_MESSAGE(10 * findings.refused() <= all.size(), findings.refused(), " of ", all.size(), " were refused");
    CHECK(findings.coverage().difference() == "");
    CHECK(findings.checks() >= 4 * (all.size() - findings.refused()));
}

TEST_CASE("a sum of f32 keeps the small terms beside large ones, and infinities as they are") {
    constexpr std::int64_t kColumns = 600;
    const float infinity = std::numeric_limits<float>::infinity();
    Graph g;
    const Axis t = g.rows("t");
    const Value x = g.input("x", f32, {t, kColumns});
    g.output("y", sum(x));
    Bindings bindings{.tensors = {}, .scalars = {}, .rows = {{"t", 3}}};
    Tensor& rows = bindings.tensors["x"] = {f32, {3, kColumns}, std::vector<double>(3 * kColumns, 1.0)};
    // Large terms that cancel, a hundred columns apart, so that a lane's partial sum holds them for a while.
    for (std::size_t i = 0; i < 300; i += 100) rows.values[i] = 1e9, rows.values[i + 300] = -1e9;
    rows.values[kColumns] = infinity;
    rows.values[2 * kColumns] = infinity;
    rows.values[2 * kColumns + 77] = -infinity;
    Engine engine(Device("cpu"), {.cache_directory = "off", .use_tuning = false});
    const Tensor y = run(engine.device(), engine.compile(g), *g.data(), bindings).at("y");
    CHECK(y.values[0] == kColumns - 6);
    CHECK(y.values[1] == infinity);
    CHECK(std::isnan(y.values[2]));
}
