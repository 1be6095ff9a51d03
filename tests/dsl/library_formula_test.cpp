// Each composite against its published formula, computed here row by row in plain double loops that share nothing with
// the expressions.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "dsl/interpret.h"
#include "dsl/library/registry.h"
#include "dsl/random_inputs.h"
#include "rowjit/gradient.h"
#include "rowjit/library.h"

using namespace rowjit;

namespace {

using Doubles = std::vector<double>;

constexpr std::int64_t kRows = 3;
constexpr std::size_t kColumns = 8;

// The canonical f32 graph of an op on random inputs, without roundings.
struct Run {
    Tensors in;
    Tensors out;

    const Doubles& operator[](const std::string& name) const {
        const auto found = out.find(name);
        return found == out.end() ? in.at(name).values : found->second.values;
    }
    // Row `row` of a tensor of rows.
    Doubles row(const std::string& name, std::size_t row, std::size_t width = kColumns) const {
        const auto first = (*this)[name].begin() + static_cast<std::ptrdiff_t>(row * width);
        return {first, first + static_cast<std::ptrdiff_t>(width)};
    }
};

Run run(std::string_view op, const OptionMap& options = {}, std::int64_t columns = kColumns) {
    const Graph g = make_graph(op, {.columns = columns, .dtype = f32, .options = options});
    const Bindings bindings = random_inputs(*g.data(), {{"tokens", kRows}}, {.seed = 11});
    return {bindings.tensors, interpret(*g.data(), bindings, Rounding::kExact)};
}

double mean_square(const Doubles& row) {
    double total = 0;
    for (const double v : row) total += v * v;
    return total / static_cast<double>(row.size());
}

Doubles normalized(const Doubles& row, double eps) {
    double mean = 0;
    for (const double v : row) mean += v / static_cast<double>(row.size());
    double variance = 0;
    for (const double v : row) variance += (v - mean) * (v - mean) / static_cast<double>(row.size());
    Doubles y;
    for (const double v : row) y.push_back((v - mean) / std::sqrt(variance + eps));
    return y;
}

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }
double silu(double v) { return v * sigmoid(v); }

// Every element of y is `formula` of its row and column.
void check(const Run& run, const std::function<double(std::size_t row, std::size_t column)>& formula) {
    const Doubles& y = run["y"];
    REQUIRE(y.size() == kRows * kColumns);
    for (std::size_t i = 0; i < y.size(); ++i) {
        CAPTURE(i);
        CHECK(y[i] == doctest::Approx(formula(i / kColumns, i % kColumns)).epsilon(1e-6));
    }
}

}  // namespace

TEST_CASE("add_layer_norm is the layer norm of the sum") {
    const Run r = run("add_layer_norm");
    for (std::size_t i = 0; i < r["sum"].size(); ++i) CHECK(r["sum"][i] == r["x"][i] + r["residual"][i]);
    check(r, [&](std::size_t row, std::size_t c) {
        return normalized(r.row("sum", row), 1e-5)[c] * r["weight"][c] + r["bias"][c];
    });
}

TEST_CASE("group_norm takes the statistics of a group over its channels and space") {
    constexpr std::size_t kGroups = 4;
    constexpr std::size_t kChannels = 2;
    const Run r = run("group_norm", {{"groups", "4"}, {"channels", "2"}});
    constexpr std::size_t kWidth = kChannels * kColumns;
    for (std::size_t i = 0; i < r["y"].size(); ++i) {
        const std::size_t channel = i / kColumns % (kGroups * kChannels);
        const double normed = normalized(r.row("x", i / kWidth, kWidth), 1e-5)[i % kWidth];
        CHECK(r["y"][i] == doctest::Approx(normed * r["weight"][channel] + r["bias"][channel]).epsilon(1e-6));
    }
}

TEST_CASE("modulated norms scale by one more than the scale, of a row, of a batch and of all") {
    for (const std::string modulation : {"row", "column"}) {
        const Run r = run("modulated_layer_norm", {{"modulation", modulation}});
        check(r, [&](std::size_t row, std::size_t c) {
            const std::size_t at = modulation == "row" ? row * kColumns + c : c;
            return normalized(r.row("x", row), 1e-6)[c] * (1 + r["scale"][at]) + r["shift"][at];
        });
    }
    const Run r = run("modulated_rms_norm", {{"modulation", "batch"}});
    for (std::size_t i = 0; i < r["y"].size(); ++i) {
        const Doubles row = r.row("x", i / kColumns);
        const std::size_t at = i / (kRows * kColumns) * kColumns + i % kColumns;
        const double normed = row[i % kColumns] / std::sqrt(mean_square(row) + 1e-6);
        CHECK(r["y"][i] == doctest::Approx(normed * (1 + r["scale"][at]) + r["shift"][at]).epsilon(1e-6));
    }
}

TEST_CASE("gated_rms_norm gates after the norm, or before it") {
    const Run after = run("gated_rms_norm");
    check(after, [&](std::size_t row, std::size_t c) {
        const Doubles x = after.row("x", row);
        return x[c] / std::sqrt(mean_square(x) + 1e-6) * after["weight"][c] * silu(after.row("gate", row)[c]);
    });
    const Run before = run("gated_rms_norm", {{"order", "gate"}});
    check(before, [&](std::size_t row, std::size_t c) {
        Doubles x = before.row("x", row);
        for (std::size_t i = 0; i < kColumns; ++i) x[i] *= silu(before.row("gate", row)[i]);
        return x[c] / std::sqrt(mean_square(x) + 1e-6) * before["weight"][c];
    });
}

TEST_CASE("l2_norm divides by the length, guarded inside the root or by a least length") {
    const auto length2 = [](const Doubles& row) { return mean_square(row) * static_cast<double>(row.size()); };
    const Run inside = run("l2_norm", {{"eps", "0.5"}});
    check(inside, [&](std::size_t row, std::size_t c) {
        return inside.row("x", row)[c] / std::sqrt(length2(inside.row("x", row)) + 0.5);
    });
    for (const std::string eps : {"0.5", "100"}) {
        const Run clamped = run("l2_norm", {{"form", "clamp"}, {"eps", eps}});
        check(clamped, [&](std::size_t row, std::size_t c) {
            const Doubles x = clamped.row("x", row);
            return x[c] / std::max(std::sqrt(length2(x)), std::stod(eps));
        });
    }
}

TEST_CASE("poly_norm weighs the normed cube, square and value in that order") {
    const Run r = run("poly_norm");
    check(r, [&](std::size_t row, std::size_t c) {
        double y = r["bias"][0];
        for (int power = 3; power >= 1; --power) {
            Doubles u;
            for (const double v : r.row("x", row)) u.push_back(std::pow(v, power));
            y += r["weight"][static_cast<std::size_t>(3 - power)] * u[c] / std::sqrt(mean_square(u) + 1e-6);
        }
        return y;
    });
}

TEST_CASE("dynamic_tanh bends by one alpha, then scales and shifts by column") {
    const Run r = run("dynamic_tanh");
    check(r, [&](std::size_t row, std::size_t c) {
        return std::tanh(r["alpha"][0] * r.row("x", row)[c]) * r["weight"][c] + r["bias"][c];
    });
}

TEST_CASE("qk_norm_rope norms every head by itself and rotates the result") {
    const Run r = run("qk_norm_rope", {{"heads", "2"}, {"kv_heads", "1"}});
    for (const auto& [in, weight, out, heads] :
         {std::tuple{"q", "q_weight", "q_out", 2U}, std::tuple{"k", "k_weight", "k_out", 1U}}) {
        for (std::size_t head = 0; head < kRows * heads; ++head) {
            Doubles x = r.row(in, head);
            const double root = std::sqrt(mean_square(x) + 1e-6);
            for (std::size_t c = 0; c < kColumns; ++c) x[c] *= r[weight][c] / root;
            for (std::size_t c = 0; c < kColumns; ++c) {
                constexpr std::size_t kHalf = kColumns / 2;
                const double partner = c < kHalf ? -x[c + kHalf] : x[c - kHalf];
                const double y = x[c] * r.row("cos", head / heads)[c] + partner * r.row("sin", head / heads)[c];
                CHECK(r.row(out, head)[c] == doctest::Approx(y).epsilon(1e-6));
            }
        }
    }
}

TEST_CASE("activations are their formulas") {
    const std::vector<std::pair<std::string, double (*)(double)>> plain = {
        {"silu", silu},
        {"relu", [](double v) { return std::max(v, 0.0); }},
        {"relu2", [](double v) { return v > 0 ? v * v : 0; }},
        {"quick_gelu", [](double v) { return v * sigmoid(1.702 * v); }},
        {"gelu", [](double v) { return v * 0.5 * std::erfc(-v / std::sqrt(2.0)); }}};
    for (const auto& [op, formula] : plain) {
        CAPTURE(op);
        const Run alone = run(op);
        check(alone, [&, f = formula](std::size_t row, std::size_t c) { return f(alone.row("x", row)[c]); });
        const Run biased = run(op, {{"bias", "true"}});
        check(biased, [&, f = formula](std::size_t row, std::size_t c) {
            return f(biased.row("x", row)[c] + biased["bias"][c]);
        });
    }
}

TEST_CASE("reglu and glu gate by a rectifier and by a sigmoid") {
    const Run reglu = run("reglu");
    check(reglu, [&](std::size_t row, std::size_t c) {
        return std::max(reglu.row("gate", row)[c], 0.0) * reglu.row("up", row)[c];
    });
    const Run glu = run("glu", {{"packed", "true"}});  // the value first
    check(glu, [&](std::size_t row, std::size_t c) {
        const Doubles both = glu.row("gate_up", row, 2 * kColumns);
        return both[c] * sigmoid(both[c + kColumns]);
    });
}

TEST_CASE("clipped_swiglu clips the gate from above, up from both sides, and unpacks alternating columns") {
    const Run r = run("clipped_swiglu", {{"packed", "true"}, {"limit", "0.75"}, {"alpha", "1.5"}});
    check(r, [&](std::size_t row, std::size_t c) {
        const Doubles both = r.row("gate_up", row, 2 * kColumns);
        const double gate = std::min(both[2 * c], 0.75);
        return (std::clamp(both[2 * c + 1], -0.75, 0.75) + 1) * gate * sigmoid(1.5 * gate);
    });
}

namespace {

// y is the half-split rotation of every head of x by the cosine and sine of each pair.
void check_rotation(const Run& run, std::size_t heads,
                    const std::function<std::pair<double, double>(std::size_t token, std::size_t pair)>& cos_sin) {
    constexpr std::size_t kHalf = kColumns / 2;
    for (std::size_t i = 0; i < run["y"].size(); ++i) {
        const Doubles x = run.row("x", i / kColumns);
        const std::size_t c = i % kColumns;
        const auto [cos, sin] = cos_sin(i / kColumns / heads, c % kHalf);
        const double partner = c < kHalf ? -x[c + kHalf] : x[c - kHalf];
        CHECK(run["y"][i] == doctest::Approx(x[c] * cos + partner * sin).epsilon(1e-6));
    }
}

}  // namespace

TEST_CASE("rope_positions turns a pair by its frequency times the position, scaled") {
    const Run r = run("rope_positions", {{"heads", "2"}, {"scaling", "1.25"}});
    check_rotation(r, 2, [&](std::size_t token, std::size_t pair) {
        const double angle = r["positions"][token] * r["inverse_frequencies"][pair];
        return std::pair{1.25 * std::cos(angle), 1.25 * std::sin(angle)};
    });
}

TEST_CASE("mrope takes each pair from the stream of its section, and interleaved every third") {
    const std::vector<std::pair<std::string, std::vector<std::size_t>>> layouts = {
        {"sections", {0, 0, 1, 2}}, {"interleaved", {0, 1, 2, 0}}};  // of the four pairs, one each for height and width
    for (const auto& [layout, streams] : layouts) {
        const Run r =
            run("mrope", {{"heads", "1"}, {"table", "half"}, {"layout", layout}, {"height", "1"}, {"width", "1"}});
        check_rotation(r, 1, [&, s = streams](std::size_t token, std::size_t pair) {
            const std::size_t at = (s[pair] * kRows + token) * kColumns / 2 + pair;
            return std::pair{r["cos"][at], r["sin"][at]};
        });
    }
}

TEST_CASE("mrope reads a table of both halves as one of half") {
    const Run r = run("mrope", {{"heads", "1"}, {"height", "1"}, {"width", "1"}});
    const std::vector<std::size_t> streams = {0, 0, 1, 2};
    for (std::size_t i = 0; i < r["y"].size(); ++i) {
        const std::size_t c = i % kColumns;
        const std::size_t at = (streams[c % 4] * kRows + i / kColumns) * kColumns + c;
        const Doubles x = r.row("x", i / kColumns);
        const double partner = c < 4 ? -x[c + 4] : x[c - 4];
        CHECK(r["y"][i] == doctest::Approx(x[c] * r["cos"][at] + partner * r["sin"][at]).epsilon(1e-6));
    }
}

TEST_CASE("rope_complex multiplies neighbours as a complex number") {
    const Run r = run("rope_complex", {{"heads", "2"}});
    for (std::size_t i = 0; i < r["y"].size(); i += 2) {
        const std::size_t at = i / kColumns / 2 * kColumns + i % kColumns;
        const std::complex<double> turned =
            std::complex(r["x"][i], r["x"][i + 1]) * std::complex(r["rotations"][at], r["rotations"][at + 1]);
        CHECK(r["y"][i] == doctest::Approx(turned.real()).epsilon(1e-6));
        CHECK(r["y"][i + 1] == doctest::Approx(turned.imag()).epsilon(1e-6));
    }
}

TEST_CASE("scale_add scales the branch by one number or by column") {
    const Run one = run("scale_add", {{"scale", "0.25"}});
    check(one,
          [&](std::size_t row, std::size_t c) { return one.row("residual", row)[c] + 0.25 * one.row("x", row)[c]; });
    const Run columns = run("scale_add", {{"per_column", "true"}});
    check(columns, [&](std::size_t row, std::size_t c) {
        return columns.row("residual", row)[c] + columns["scales"][c] * columns.row("x", row)[c];
    });
}

TEST_CASE("embedding is the table's row of each index") {
    const Run r = run("embedding", {{"vocabulary", "5"}});
    check(r, [&](std::size_t row, std::size_t c) {
        return r["table"][static_cast<std::size_t>(r["ids"][row]) * kColumns + c];
    });
}

TEST_CASE("sgd_step is torch's, with and without Nesterov") {
    for (const std::string nesterov : {"false", "true"}) {
        const Run r = run("sgd_step", {{"learning_rate", "0.1"}, {"weight_decay", "0.5"}, {"nesterov", nesterov}});
        for (std::size_t i = 0; i < r["parameter"].size(); ++i) {
            const double g = r["gradient"][i] + 0.5 * r["parameter"][i];
            const double m = 0.9 * r["momentum"][i] + g;
            const double step = nesterov == "true" ? g + 0.9 * m : m;
            CHECK(r["new_momentum"][i] == doctest::Approx(m).epsilon(1e-6));
            CHECK(r["new_parameter"][i] == doctest::Approx(r["parameter"][i] - 0.1 * step).epsilon(1e-6));
        }
    }
}

TEST_CASE("adamw_step decays the parameter apart and corrects both moments") {
    const Run r = run("adamw_step", {{"learning_rate", "0.1"}, {"correction1", "0.271"}, {"correction2", "0.002997"}});
    for (std::size_t i = 0; i < r["parameter"].size(); ++i) {
        const double g = r["gradient"][i];
        const double m = 0.9 * r["first_moment"][i] + 0.1 * g;
        const double v = 0.999 * std::abs(r["second_moment"][i]) + 0.001 * g * g;
        const double step = (m / 0.271) / (std::sqrt(v / 0.002997) + 1e-8);
        CHECK(r["new_first_moment"][i] == doctest::Approx(m).epsilon(1e-5));
        CHECK(r["new_second_moment"][i] == doctest::Approx(v).epsilon(1e-5));
        CHECK(r["new_parameter"][i] == doctest::Approx(r["parameter"][i] * 0.999 - 0.1 * step).epsilon(1e-5));
    }
}

TEST_CASE("lion_step moves by the sign of the interpolated momentum") {
    const Run r = run("lion_step", {{"learning_rate", "0.1"}, {"weight_decay", "0.5"}});
    for (std::size_t i = 0; i < r["parameter"].size(); ++i) {
        const double mixed = 0.9 * r["momentum"][i] + 0.1 * r["gradient"][i];
        const double step = mixed > 0 ? 0.1 : -0.1;
        CHECK(r["new_parameter"][i] == doctest::Approx(r["parameter"][i] * 0.95 - step).epsilon(1e-5));
        CHECK(r["new_momentum"][i] == doctest::Approx(0.99 * r["momentum"][i] + 0.01 * r["gradient"][i]).epsilon(1e-5));
    }
}

TEST_CASE("an optimizer's results overwrite what they replace, and it has no backward") {
    const Graph g = make_graph("adamw_step", {});
    std::vector<std::string> over;
    for (const OutputInfo& output : g.data()->outputs()) over.push_back(output.alias);
    CHECK(over == std::vector<std::string>{"parameter", "first_moment", "second_moment"});
    CHECK(trained_inputs("adamw_step", g).empty());
}

TEST_CASE("quantize takes the nearest of 127 steps to the largest magnitude, of a row or of a block") {
    for (const std::size_t block : {std::size_t{4}, kColumns}) {
        const Run r = run("quantize", {{"block", block == kColumns ? "0" : "4"}});
        REQUIRE(r["scale"].size() == kRows * kColumns / block);
        for (std::size_t i = 0; i < r["codes"].size(); ++i) {
            const Doubles x = r.row("x", i / block, block);
            double largest = 0;
            for (const double v : x) largest = std::max(largest, std::abs(v));
            CHECK(r["scale"][i / block] == doctest::Approx(largest / 127));
            CHECK(r["codes"][i] == std::nearbyint(x[i % block] / (largest / 127)));
        }
    }
}

TEST_CASE("quantize rounds halves to even and gives zeros for zeros") {
    const Graph g = make_graph("quantize", {.columns = 6, .dtype = f32, .options = {}});
    const Bindings bindings = {
        {{"x", {f32, {2, 6}, {127, 0.5, 1.5, -0.5, -1.5, 2.5, 0, 0, 0, 0, 0, 0}}}}, {}, {{"tokens", 2}}};
    const Tensors out = interpret(*g.data(), bindings, Rounding::kExact);
    CHECK(out.at("codes").values == Doubles{127, 0, 2, 0, -2, 2, 0, 0, 0, 0, 0, 0});
    CHECK(out.at("scale").values == Doubles{1, 0});
}

TEST_CASE(
    "quantize to floats of eight bits takes the greatest of them for the largest magnitude, and rounds the rest") {
    for (const auto& [codes, largest] : {std::pair(e4m3, 448.0), std::pair(e5m2, 57344.0)}) {
        const Run r = run("quantize", {{"codes", std::string(name(codes))}});
        for (std::size_t row = 0; row < kRows; ++row) {
            const Doubles x = r.row("x", row);
            double most = 0;
            for (const double v : x) most = std::max(most, std::abs(v));
            CHECK(r["scale"][row] == doctest::Approx(most / largest));
            double greatest = 0;
            for (std::size_t c = 0; c < kColumns; ++c) {
                const double code = r["codes"][row * kColumns + c];
                const double wanted = x[c] * largest / most;
                CHECK(std::abs(code - wanted) <= ulp(codes, wanted) / 2);
                CHECK(round_to(codes, code) == code);
                greatest = std::max(greatest, std::abs(code));
            }
            CHECK(greatest == largest);
        }
    }
}

TEST_CASE("dequantize gives the codes times their scale") {
    const Run r = run("dequantize", {{"result", "f32"}});
    check(r, [&](std::size_t row, std::size_t c) { return r.row("codes", row)[c] * r["scale"][row]; });
}

TEST_CASE(
    "dropout keeps its share, scaled so that the mean stays, and the same elements for the same seed and offset") {
    constexpr std::size_t kElements = 200 * 1000;
    const auto dropped = [&](const OptionMap& options) {
        const Graph g = make_graph("dropout", {.columns = 1000, .dtype = f32, .options = options});
        const Tensor ones = {f32, {200, 1000}, Doubles(kElements, 1.0)};
        return interpret(*g.data(), {{{"x", ones}}, {}, {{"tokens", 200}}}, Rounding::kEager).at("y").values;
    };
    const auto kept = [](const Doubles& y) {
        return std::count_if(y.begin(), y.end(), [](double v) { return v != 0; });
    };
    const Doubles y = dropped({{"p", "0.25"}, {"seed", "7"}});
    // Four standard deviations of so many throws.
    const double deviation = std::sqrt(0.25 * 0.75 * kElements);
    CHECK(std::abs(static_cast<double>(kept(y)) - 0.75 * kElements) < 4 * deviation);
    for (const double v : y) REQUIRE((v == 0 || v == static_cast<float>(1 / 0.75)));
    // Neighbours, in a row and in a column, are dropped together no more often than by chance.
    for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::size_t{1000}}) {
        double both = 0;
        for (std::size_t i = step; i < kElements; ++i) both += y[i] == 0 && y[i - step] == 0 ? 1 : 0;
        CHECK(std::abs(both - 0.0625 * kElements) < 5 * std::sqrt(0.0625 * kElements));
    }
    CHECK(dropped({{"p", "0.25"}, {"seed", "7"}}) == y);
    for (const OptionMap& other :
         {OptionMap{{"p", "0.25"}, {"seed", "8"}}, OptionMap{{"p", "0.25"}, {"seed", "7"}, {"offset", "1"}}}) {
        const Doubles z = dropped(other);
        double both = 0;
        for (std::size_t i = 0; i < kElements; ++i) both += y[i] == 0 && z[i] == 0 ? 1 : 0;
        CHECK(std::abs(both - 0.0625 * kElements) < 5 * std::sqrt(0.0625 * kElements));
    }
}

TEST_CASE("uniform numbers fall evenly into sixteen bins") {
    Graph g;
    const Axis n = g.columns(160000);
    g.output("u", uniform(g.constant(i64, -3), g.constant(i64, 5), g.iota(n, i64)));
    const Tensors out = interpret(*g.data(), {{}, {}, {}}, Rounding::kEager);
    std::array<double, 16> bins = {};
    for (const double u : out.at("u").values) {
        REQUIRE((u >= 0 && u < 1));
        bins[static_cast<std::size_t>(u * 16)] += 1;
    }
    double chi_squared = 0;
    for (const double count : bins) chi_squared += (count - 10000) * (count - 10000) / 10000;
    CHECK(chi_squared < 37.7);  // one in a thousand, of 15 degrees of freedom
    CHECK(chi_squared > 3.48);  // likewise: too even is not random either
}

TEST_CASE("dropout with p 0 is its operand, and with p 1 all zeros, forward and backward") {
    for (const auto& [p, kept] : {std::pair{"0", true}, std::pair{"1", false}}) {
        const Graph g = make_graph("dropout", {.columns = 64, .dtype = bf16, .options = {{"p", p}}});
        for (const Graph& graph : {g, gradient(g)}) {
            const Bindings bindings = random_inputs(*graph.data(), {{"tokens", 5}}, {.seed = 2});
            const Tensors out = interpret(*graph.data(), bindings, Rounding::kEager);
            const Doubles& in = bindings.tensors.begin()->second.values;
            CHECK(out.begin()->second.values == (kept ? in : Doubles(in.size(), 0.0)));
        }
    }
}

TEST_CASE("dropout's mask depends on the order of the elements, not on how axes divide them") {
    const auto mask = [](bool heads) {
        Graph g;
        const Axis tokens = g.rows("tokens");
        const Axis h = heads ? g.rows("heads", 4) : g.columns("heads", 4);
        const Value x = g.input("x", f32, {tokens, h, 16});
        g.output("y", dropout(x, {.p = 0.5, .seed = 3}));
        const Tensor ones = {f32, {6, 4, 16}, Doubles(6 * 4 * 16, 1.0)};
        return interpret(*g.data(), {{{"x", ones}}, {}, {{"tokens", 6}}}, Rounding::kEager).at("y").values;
    };
    CHECK(mask(true) == mask(false));
    CHECK(gradient(make_graph("dropout", {.columns = 64})).data()->find_input("x") == std::nullopt);
}

TEST_CASE("sparsemax is what sorting gives") {
    const Run r = run("sparsemax");
    check(r, [&](std::size_t row, std::size_t c) {
        Doubles sorted = r.row("x", row);
        std::sort(sorted.rbegin(), sorted.rend());
        double total = 0;
        double tau = 0;
        for (std::size_t k = 0; k < sorted.size(); ++k) {
            total += sorted[k];
            const double candidate = (total - 1) / static_cast<double>(k + 1);
            if (sorted[k] > candidate) tau = candidate;
        }
        return std::max(r.row("x", row)[c] - tau, 0.0);
    });
}

TEST_CASE("sparsemax's gradient takes its mean off what is above zero, and rows without a largest number are NaN") {
    Graph g;
    const Axis tokens = g.rows("tokens");
    const Value x = g.input("x", f32, {tokens, 4});
    g.output("y", sparsemax(x));
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor rows = {
        f32, {5, 4}, {2.5, 2, 1, -inf, 0, inf, 0, 0, -inf, -inf, -inf, -inf, 0, std::nan(""), 1, 2, 3, 3, 3, 3}};
    const Doubles y = interpret(*g.data(), {{{"x", rows}}, {}, {{"tokens", 5}}}, Rounding::kEager).at("y").values;
    CHECK(Doubles(y.begin(), y.begin() + 4) == Doubles{0.75, 0.25, 0, 0});
    CHECK(std::all_of(y.begin() + 4, y.begin() + 16, [](double v) { return std::isnan(v); }));
    CHECK(Doubles(y.begin() + 16, y.end()) == Doubles(4, 0.25));
    const Graph backward = gradient(g);
    const Tensor d_y = {f32, {5, 4}, Doubles{1, 5, 9, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 6}};
    const Doubles d_x =
        interpret(*backward.data(), {{{"x", rows}, {"d_y", d_y}}, {}, {{"tokens", 5}}}, Rounding::kEager)
            .at("d_x")
            .values;
    CHECK(Doubles(d_x.begin(), d_x.begin() + 4) == Doubles{-2, 2, 0, 0});
    CHECK(Doubles(d_x.begin() + 16, d_x.end()) == Doubles{-2, -1, 0, 3});
}
