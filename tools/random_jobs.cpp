#include "tools/random_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/fail.h"
#include "base/philox.h"
#include "dsl/tensor.h"
#include "dsl/traffic.h"

namespace rowjit {
namespace {

constexpr int kWidestBits = 18;  // 262144 columns
// An operation that refuses so many draws, as one that fits into few bytes at few widths, gives way to another.
constexpr int kDrawsOfOp = 64;
constexpr int kMostOps = 64;
constexpr int kSeeds = 1'000'000'000;  // of inputs: short enough to be typed

// What models have.
struct ModelWidths {
    std::string_view columns;
    std::vector<std::int64_t> widths;
};

const std::vector<ModelWidths>& model_width_rows() {
    static const std::vector<ModelWidths> rows = {
        {"hidden size", {576, 768, 896, 1024, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 5120, 7168, 8192, 16384}},
        {"intermediate size", {1536, 2880, 4864, 5632, 8960, 9216, 11008, 12288, 13824, 14336, 18432, 28672, 53248}},
        {"head width", {32, 64, 80, 96, 112, 128, 192, 256, 512}},
        {"spatial positions", {49, 64, 196, 256, 784, 1024, 4096, 16384}},
        {"classes", {8, 32, 60, 64, 128, 160, 256, 512, 1000, 2048, 4096, 32768, 131072}},
        {"vocabulary", {32000, 32064, 49152, 50257, 50280, 65024, 100352, 128256, 129280, 151936, 201088, 262144}},
        {"ranks", {2, 4, 8, 16, 64}},
        {"tokens of a sequence", {512, 1000, 2048, 4096, 8192, 32768, 131072}},
    };
    return rows;
}

// Legal values where an option is a number: usual ones, those at which its term vanishes, and some on either side.
// Where an operation refuses one that others take, it is drawn again.
struct DrawnValues {
    std::string_view option;
    std::string_view values;
    std::string_view op = "";  // of this alone, before the row of all
};

constexpr DrawnValues kDrawnValues[] = {
    {"alpha", "0.5 1 1.702 2"},
    {"beta", "0 0.04 0.1 0.5 1"},
    {"beta1", "0 0.5 0.9"},
    {"beta2", "0 0.95 0.99 0.999"},
    {"block", "0 1 2 16 32 64 128"},
    {"causal_offset", "-3 0 1 100"},
    {"channels", "1 2 3 4 7"},
    {"clip_high", "0 0.2 0.28 5"},
    {"clip_low", "0 0.2 0.9"},
    {"correction1", "0.1 0.5 1"},
    {"correction2", "1e-3 0.5 1"},
    {"count", "1 2 3 8 64"},
    {"delta", "0 0.5 1.5 4"},
    {"depth", "1 2 3 8 24"},
    {"desirable_weight", "0.5 1 1.33"},
    {"eps", "1e-12 1e-8 1e-6 1e-5 0.1"},
    {"first_class", "0 1 7 1000"},
    {"gamma", "0 0.5 1.6"},
    {"groups", "1 2 3 8 32"},
    {"heads", "1 2 3 7 8 32"},
    {"height", "-1 0 1 2 8 24"},
    {"hidden", "1 7 32 64 100 128"},
    // Not 0: of one column it ignores every target, and a mean over no rows is no number.
    {"ignore_index", "-100 -1 3"},
    {"items", "1 7 100"},
    {"iterations", "1 2 3 20"},
    {"kv_heads", "1 2 3 8"},
    {"label_smoothing", "0 0.01 0.1 0.4 1"},
    {"learning_rate", "0 1e-4 1e-3 0.1"},
    {"length", "1 2 3 4 7 16"},
    {"limit", "0.5 1 7"},
    {"max_length", "1 7 128"},
    {"max_norm", "0.1 1 10"},
    {"momentum_factor", "0 0.9 0.99"},
    {"nll", "0 0.1 1"},
    {"offset", "0 1 3"},
    {"p", "0 0.1 0.5 0.9 1"},
    {"reference_width", "1 7 32 64 100 128"},
    {"rotary", "0 2 4 16 32 64"},
    {"scale", "-1.5 0 0.22 1"},
    {"scaling", "0.5 1 1.1"},
    {"seed", "0 1 12345"},
    {"softcap", "1 15 30 50"},
    {"streams", "2 3 4 8"},
    {"tau", "0.05 0.5 1"},
    {"teacher_width", "1 7 32 64 100 128"},
    {"temperature", "0.3 0.7 1 2 5"},
    {"undesirable_weight", "0.5 1 1.33"},
    // Random classes that index nothing are below 100 (dsl/random_inputs.h): all targets must be classes.
    {"vocabulary", "100 1000 128256", "combine_vocabulary"},
    {"vocabulary", "1 2 100 1000 128256"},
    {"weight_decay", "0 1e-2 0.1"},
    {"width", "-1 0 1 2 8 24"},
    {"z_loss", "0 1e-5 1e-4 1e-2"},
};

// Words of a counter-based generator: what one draw takes of them moves no other draw.
class Dice {
  public:
    Dice(std::uint64_t seed, std::int64_t job, int draw)
        : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
          counter_{0, static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(job),
                   static_cast<std::uint32_t>(job >> 32)} {}

    // In [0, sides).
    std::int64_t roll(std::int64_t sides) {
        const std::uint32_t word = philox4x32_10(counter_, key_)[0];
        ++counter_[0];
        return static_cast<std::int64_t>(word % static_cast<std::uint64_t>(sides));
    }

    template <class T>
    const T& pick(const std::vector<T>& from) {
        return from[static_cast<std::size_t>(roll(std::ssize(from)))];
    }

  private:
    std::array<std::uint32_t, 2> key_;
    std::array<std::uint32_t, 4> counter_;
};

std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(' '), text.size());
        words.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return words;
}

std::vector<std::string> values_of(const CompositeInfo& op, const OptionInfo& option) {
    if (option.type == OptionType::kFlag) return {"false", "true"};
    if (option.type == OptionType::kChoice) return words_of(option.choices);
    std::vector<std::string> values = words_of(drawn_values(op.name, option.name));
    RJ_CHECK(!values.empty(), "{}: option {} has no row of values to draw; give it one", op.name, option.name);
    return values;
}

// Half of the options stay as they are: were all drawn, most draws of an operation of many would be refused.
OptionMap draw_options(const CompositeInfo& op, bool draws_f64, Dice* dice) {
    OptionMap drawn;
    for (const OptionInfo& option : op.options) {
        if (dice->roll(2) == 0) continue;
        std::vector<std::string> values = values_of(op, option);
        if (!draws_f64) std::erase(values, "f64");  // a choice of a result's dtype, in which GPUs do not compute
        const std::string value = dice->pick(values);
        if (value != option.default_value) drawn[std::string(option.name)] = value;
    }
    return drawn;
}

// Of all magnitudes: narrow rows, odd ones, those that are one off what fills vectors and blocks, powers of two, and
// what models have.
std::int64_t draw_width(std::string_view columns, Dice* dice) {
    const std::int64_t bits = 1 + dice->roll(kWidestBits);
    switch (dice->roll(5)) {
        case 0: return 1 + dice->roll(64);
        case 1: return dice->roll(std::int64_t{1} << bits) | 1;
        case 2:
            return (std::int64_t{1} << std::min<std::int64_t>(bits, kWidestBits - 1)) + (dice->roll(2) == 0 ? 1 : -1);
        case 3: return std::int64_t{1} << bits;
        default: break;
    }
    const std::vector<std::int64_t> widths = model_widths(columns);
    RJ_CHECK(!widths.empty(), "columns that are {} have no row of widths to draw; give them one", columns);
    return dice->pick(widths);
}

enum class Pass : std::uint8_t { kForward, kBackward, kJoint };

// The pass that is asked for, else any.
Pass draw_pass(const JobOptions& within, Dice* dice) {
    const auto any = static_cast<Pass>(dice->roll(3));
    return within.backward ? Pass::kBackward : within.joint ? Pass::kJoint : any;
}

// Those that are asked for, else all.
struct Restrictions {
    std::vector<std::string> ops;
    std::vector<Dtype> dtypes;
    OptionMap options;
    std::int64_t rows;       // of a launch that
    std::int64_t max_bytes;  // moves so many at most
};

bool draws_f64(const Restrictions& restrictions) {
    return std::ranges::find(restrictions.dtypes, Dtype::kF64) != restrictions.dtypes.end();
}

Restrictions restrictions_of(const JobOptions& within, std::int64_t rows) {
    JobOptions all = within;
    if (all.ops.empty()) all.ops = {"all"};
    if (all.dtypes.empty()) all.dtypes = {"bf16", "f16", "f32"};
    Restrictions found;
    found.ops = chosen_ops(all);
    for (const std::string& op : found.ops) find_composite(op);  // refuses one that is not known
    for (const std::string& dtype : all.dtypes) found.dtypes.push_back(parse_dtype(dtype));
    found.options = chosen_options(all, found.ops.size());
    found.rows = rows;
    found.max_bytes = within.max_bytes > 0 ? within.max_bytes : kRandomMaxBytes;
    return found;
}

std::string command_words(const std::string& op, const OpRequest& request, Pass pass, std::uint64_t seed) {
    std::string words = fmt::format("--op {} --columns {} --dtype {}", op, request.columns, name(request.dtype));
    for (const auto& [option, value] : request.options) words += fmt::format(" --option {}={}", option, value);
    if (pass == Pass::kBackward) words += " --backward";
    if (pass == Pass::kJoint) words += " --joint";
    return words + fmt::format(" --seed {}", seed);
}

// Throws Error where the operation refuses what was drawn.
RandomJob draw_job(const std::string& op, const JobOptions& within, const Restrictions& restrictions, Dice* dice) {
    const CompositeInfo& info = find_composite(op);
    OpRequest request;
    request.columns = within.columns.empty() ? draw_width(info.columns, dice) : dice->pick(within.columns);
    request.dtype = dice->pick(restrictions.dtypes);
    request.options = draw_options(info, draws_f64(restrictions), dice);
    for (const auto& [option, value] : restrictions.options) request.options[option] = value;
    Pass pass = draw_pass(within, dice);
    const auto seed = static_cast<std::uint64_t>(dice->roll(kSeeds));
    RandomJob drawn{op_job(op, request), seed, ""};
    for (const auto& [option, value] : request.options) drawn.job.name += fmt::format(" {}={}", option, value);
    if (!has_backward(drawn.job)) {
        if (within.backward || within.joint) fail(ErrorCode::kInvalidArgument, "{} has no backward", drawn.job.name);
        pass = Pass::kForward;
    }
    if (pass == Pass::kBackward) make_backward(&drawn.job);
    if (pass == Pass::kJoint) make_joint(&drawn.job);
    drawn.job.name += fmt::format(", seed {}", seed);
    drawn.words = command_words(op, request, pass, seed);
    return drawn;
}

// Errors that say of what was drawn that it is not legal.
bool is_refusal(const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kInvalidGraph ||
           error.code() == ErrorCode::kUnsupported;
}

// The job, if it is legal and small enough; else `refusal` says why not.
std::optional<RandomJob> draw_legal_job(const std::string& op, const JobOptions& within,
                                        const Restrictions& restrictions, Dice dice, std::string* refusal) {
    try {
        RandomJob drawn = draw_job(op, within, restrictions, &dice);
        const GraphData& graph = *drawn.job.graph.data();
        const std::int64_t bytes = least_bytes(graph, all_rows(graph, restrictions.rows));
        if (bytes <= restrictions.max_bytes) return drawn;
        *refusal = fmt::format("{} moves {} bytes", drawn.job.name, bytes);
    } catch (const Error& error) {
        if (!is_refusal(error)) throw;
        *refusal = error.what();
    }
    return std::nullopt;
}

RandomJob draw_until_legal(const JobOptions& within, const Restrictions& restrictions, std::uint64_t seed,
                           std::int64_t number) {
    std::string refusal;
    int draw = 0;
    for (int i = 0; i < kMostOps; ++i) {
        const std::string op = Dice(seed, number, draw++).pick(restrictions.ops);
        for (int again = 0; again < kDrawsOfOp; ++again) {
            std::optional<RandomJob> drawn =
                draw_legal_job(op, within, restrictions, Dice(seed, number, draw++), &refusal);
            if (drawn) return *std::move(drawn);
        }
    }
    fail(ErrorCode::kInvalidArgument,
         "--random: of {} draws none is legal and moves at most {} bytes (the last: {}); give other --op, --columns, "
         "--dtype or --option, or more --max-bytes",
         kMostOps * kDrawsOfOp, restrictions.max_bytes, refusal);
}

}  // namespace

std::vector<RandomJob> draw_jobs(const JobOptions& within, std::int64_t count, std::uint64_t seed, std::int64_t rows) {
    if (!within.model.empty() || !within.graph.empty()) {
        fail(ErrorCode::kInvalidArgument,
             "--random draws from the operations of `rowjit ops`; leave out {}, or leave out --random to verify what "
             "it holds",
             within.model.empty() ? "--graph" : "--model");
    }
    if (!within.rows.empty())
        fail(ErrorCode::kInvalidArgument, "--random verifies each job on a few rows of every axis; leave out --rows");
    require_one_pass(within);
    const Restrictions restrictions = restrictions_of(within, rows);
    std::vector<RandomJob> jobs;
    for (std::int64_t i = 0; i < count; ++i) jobs.push_back(draw_until_legal(within, restrictions, seed, i));
    return jobs;
}

std::string_view drawn_values(std::string_view op, std::string_view option) {
    for (const DrawnValues& row : kDrawnValues) {
        if (row.option == option && (row.op.empty() || row.op == op)) return row.values;
    }
    return "";
}

std::vector<std::int64_t> model_widths(std::string_view columns) {
    for (const ModelWidths& row : model_width_rows()) {
        if (row.columns == columns) return row.widths;
    }
    return {};
}

}  // namespace rowjit
