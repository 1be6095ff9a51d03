// The CPU emitter on kernels written by hand, each showing one feature of the loop IR, against plain loops.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/check.h"
#include "base/dtype.h"
#include "tests/compiler/cpu_kernel.h"

namespace rowjit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_values(std::size_t count, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

// out[row] = the components of `monoid` over x[row, :], one tensor each.
struct Folded {
    std::vector<float> first;
    std::vector<float> second;
};

Folded fold(Monoid monoid, std::int64_t columns, int vector, std::vector<float>& x) {
    KernelWriter w("fold", columns, vector);
    const int in = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int first = w.tensor("first", Dtype::kF32, {w.rows()}, true);
    const int second = w.tensor("second", Dtype::kF32, {w.rows()}, true);
    const int accumulator = w.accumulator(monoid);
    w.open_loop();
    w.accumulate(accumulator, w.load(in));
    w.close_loop();
    std::vector<ValueId> results;
    w.all_reduce({accumulator}, &results);
    w.store(first, results.front(), {Access::Kind::kUniform});
    w.store(second, results.back(), {Access::Kind::kUniform});

    const auto rows = static_cast<std::int64_t>(x.size()) / columns;
    Folded folded{std::vector<float>(static_cast<std::size_t>(rows)),
                  std::vector<float>(static_cast<std::size_t>(rows))};
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(rows, columns);
    run.bind("first_rows_stride", std::int64_t{1});
    run.bind("second_rows_stride", std::int64_t{1});
    run.bind("x", x.data());
    run.bind("first", folded.first.data());
    run.bind("second", folded.second.data());
    run(0, rows);
    return folded;
}

// y = x + 1 in bf16, by an explicit schedule.
struct Increment {
    explicit Increment(std::int64_t columns, int vector, std::int64_t column_blocks = 1, int rows_per_block = 1)
        : w("increment", columns, vector) {
        const int in = w.tensor("x", Dtype::kBf16, {w.rows(), w.columns()});
        const int out = w.tensor("y", Dtype::kBf16, {w.rows(), w.columns()}, true);
        w.kernel().schedule.column_blocks = column_blocks;
        w.kernel().schedule.rows_per_block = rows_per_block;
        const std::int64_t vectors = (columns + vector - 1) / vector;
        w.loop().iterations = (vectors + column_blocks - 1) / column_blocks;
        w.open_loop();
        w.store(out, w.map(Op::kAdd, {w.load(in), w.constant(Dtype::kBf16, 1)}, Dtype::kBf16));
        w.close_loop();
    }
    KernelWriter w;
};

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
    std::vector<std::uint16_t> narrow;
    for (const float value : values) narrow.push_back(f32_to_bf16(value));
    return narrow;
}

int wrong_increments(const std::vector<std::uint16_t>& x, const std::vector<std::uint16_t>& y) {
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) wrong += y[i] != f32_to_bf16(bf16_to_f32(x[i]) + 1) ? 1 : 0;
    return wrong;
}

}  // namespace

TEST_CASE("every width of row is covered once, whatever the vector") {
    for (const std::int64_t columns : {1, 2, 3, 7, 15, 16, 17, 31, 64, 100, 127, 129, 1000, 4096}) {
        for (const int vector : {1, 4, 16, 32, 64}) {
            Increment increment(columns, vector);
            std::vector<std::uint16_t> x = to_bf16(random_values(static_cast<std::size_t>(columns) * 3));
            std::vector<std::uint16_t> y(x.size() + 1, 0xABCD);
            CpuRun run(increment.w.kernel(), find_target("native"));
            run.bind_rows(3, columns);
            run.bind("x", x.data());
            run.bind("y", y.data());
            run(0, 3);
            CHECK(y.back() == 0xABCD);
            y.pop_back();
            CHECK_MESSAGE(wrong_increments(x, y) == 0, columns, " columns in vectors of ", vector);
        }
    }
}

TEST_CASE("a row divided over column blocks is covered once") {
    for (const std::int64_t columns : {64, 100, 1000, 1023}) {
        for (const std::int64_t blocks : {2, 3, 7}) {
            Increment increment(columns, 16, blocks);
            std::vector<std::uint16_t> x = to_bf16(random_values(static_cast<std::size_t>(columns) * 2));
            std::vector<std::uint16_t> y(x.size(), 0);
            CpuRun run(increment.w.kernel(), find_target("native"));
            run.bind_rows(2, columns);
            run.bind("x", x.data());
            run.bind("y", y.data());
            for (std::int64_t block = 0; block < 2 * blocks; ++block) run(block, block + 1);
            CHECK_MESSAGE(wrong_increments(x, y) == 0, columns, " columns in ", blocks, " blocks");
        }
    }
}

TEST_CASE("blocks past the last row do nothing, and zero rows are no rows") {
    Increment increment(64, 16, 1, 4);
    std::vector<std::uint16_t> x = to_bf16(random_values(6 * 64));
    std::vector<std::uint16_t> y(8 * 64, 7);
    CpuRun run(increment.w.kernel(), find_target("native"));
    run.bind_rows(6, 64);
    run.bind("x", x.data());
    run.bind("y", y.data());
    run(0, 5);
    CHECK(std::count(y.begin() + 6 * 64, y.end(), 7) == 2 * 64);
    y.resize(x.size());
    CHECK(wrong_increments(x, y) == 0);

    std::vector<std::uint16_t> untouched(64, 7);
    run.bind_rows(0, 64);
    run.bind("y", untouched.data());
    run(0, 1);
    CHECK(std::count(untouched.begin(), untouched.end(), 7) == 64);
}

TEST_CASE("padded row strides and unaligned bases are honoured") {
    Increment increment(100, 16);
    const std::vector<std::uint16_t> values = to_bf16(random_values(3 * 131 + 1));
    std::vector<std::uint16_t> x = values;
    std::vector<std::uint16_t> y(3 * 107 + 1, 9);
    CpuRun run(increment.w.kernel(), find_target("native"));
    run.bind_rows(3, 131);
    run.bind("y_rows_stride", std::int64_t{107});
    run.bind("x", x.data() + 1);
    run.bind("y", y.data() + 1);
    run(0, 3);
    int wrong = 0;
    for (std::size_t row = 0; row < 3; ++row) {
        for (std::size_t column = 0; column < 107 && 1 + row * 107 + column < y.size(); ++column) {
            const std::uint16_t got = y[1 + row * 107 + column];
            const std::uint16_t in = x[1 + row * 131 + column];
            const std::uint16_t expected = column < 100 ? f32_to_bf16(bf16_to_f32(in) + 1) : std::uint16_t{9};
            if (got != expected) ++wrong;
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("sums, maxima and minima fold every element of a row") {
    for (const std::int64_t columns : {1, 5, 16, 77, 1000, 4096}) {
        for (const int vector : {1, 8, 16, 64}) {
            std::vector<float> x = random_values(static_cast<std::size_t>(columns) * 2);
            const Folded sum = fold(Monoid::kSum, columns, vector, x);
            const Folded maximum = fold(Monoid::kMax, columns, vector, x);
            const Folded minimum = fold(Monoid::kMin, columns, vector, x);
            for (std::size_t row = 0; row < 2; ++row) {
                const auto* begin = x.data() + static_cast<std::int64_t>(row) * columns;
                double expected = 0;
                for (std::int64_t i = 0; i < columns; ++i) expected += begin[i];
                CHECK(sum.first[row] == doctest::Approx(expected).epsilon(1e-4));
                CHECK(maximum.first[row] == *std::max_element(begin, begin + columns));
                CHECK(minimum.first[row] == *std::min_element(begin, begin + columns));
            }
        }
    }
}

TEST_CASE("a NaN anywhere in a row makes its maximum and minimum NaN") {
    for (std::size_t position = 0; position < 77; ++position) {
        std::vector<float> x = random_values(77);
        x[position] = std::nanf("");
        CHECK(std::isnan(fold(Monoid::kMax, 77, 16, x).first[0]));
        CHECK(std::isnan(fold(Monoid::kMin, 77, 16, x).first[0]));
    }
}

TEST_CASE("max with rescaled sum agrees with two passes, minus infinities included") {
    for (const std::int64_t columns : {1, 7, 64, 1001, 4096}) {
        std::vector<float> x = random_values(static_cast<std::size_t>(columns));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 1 ? -kInfinity : x[i] * 30;
        const Folded folded = fold(Monoid::kMaxSumExp, columns, 16, x);
        const float maximum = *std::max_element(x.begin(), x.end());
        double sum = 0;
        for (const float value : x) sum += std::exp(double{value} - maximum);
        CHECK(folded.first[0] == maximum);
        CHECK(folded.second[0] == doctest::Approx(sum).epsilon(1e-5));
    }
}

TEST_CASE("max with rescaled sum moves its origin for every lane, whichever vector passes it") {
    for (const int vector : {16, 32, 64}) {
        for (std::size_t peak = 0; peak < 300; peak += 7) {
            std::vector<float> x(300, -kInfinity);
            x[peak] = 80;
            x[(peak + 150) % 300] = 79;
            const Folded folded = fold(Monoid::kMaxSumExp, 300, vector, x);
            CHECK(folded.first[0] == 80);
            CHECK(folded.second[0] == doctest::Approx(1 + std::exp(-1.0)).epsilon(1e-6));
        }
    }
}

TEST_CASE("max with rescaled sum gives NaN where eager does") {
    const std::vector<float> base = random_values(100);
    std::vector<float> all_out(100, -kInfinity);
    Folded folded = fold(Monoid::kMaxSumExp, 100, 16, all_out);
    CHECK(folded.first[0] == -kInfinity);
    CHECK(std::isnan(folded.second[0]));

    std::vector<float> infinite = base;
    infinite[40] = kInfinity;
    folded = fold(Monoid::kMaxSumExp, 100, 16, infinite);
    CHECK(folded.first[0] == kInfinity);
    CHECK(std::isnan(folded.second[0]));

    std::vector<float> broken = base;
    broken[99] = std::nanf("");
    folded = fold(Monoid::kMaxSumExp, 100, 16, broken);
    CHECK(std::isnan(folded.first[0]));
    CHECK(std::isnan(folded.second[0]));
}

TEST_CASE("Welford's mean and squares survive an offset that a sum of squares would not") {
    for (const std::int64_t columns : {1, 3, 16, 17, 100, 4099}) {
        for (const int vector : {1, 16, 64}) {
            std::vector<float> x = random_values(static_cast<std::size_t>(columns));
            for (float& value : x) value += 4096;
            double mean = 0;
            for (const float value : x) mean += value / static_cast<double>(columns);
            double squares = 0;
            for (const float value : x) squares += (value - mean) * (value - mean);
            const Folded folded = fold(Monoid::kWelford, columns, vector, x);
            CHECK(folded.first[0] == doctest::Approx(mean).epsilon(1e-6));
            CHECK(folded.second[0] == doctest::Approx(squares).epsilon(1e-3));
        }
    }
}

TEST_CASE("a result does not depend on the range of blocks it was computed in") {
    std::vector<float> x = random_values(8 * 1000);
    const Folded whole = fold(Monoid::kSum, 1000, 16, x);
    std::vector<float> last(x.begin() + 7 * 1000, x.end());
    CHECK(fold(Monoid::kSum, 1000, 16, last).first[0] == whole.first[7]);
}

TEST_CASE("a rotary partner is read by moving whole vectors") {
    // y[c] = x[(c + 32) % 64]
    KernelWriter w("partner", 64, 16);
    const int in = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int out = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
    w.open_loop();
    w.store(out, w.load_at(in, {Coord(Axis{0}), (Coord(Axis{1}) + 32) % 64}, {Access::Kind::kVector}));
    w.close_loop();
    std::vector<float> x = random_values(64);
    std::vector<float> y(64);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(1, 64);
    run.bind("x", x.data());
    run.bind("y", y.data());
    run(0, 1);
    int wrong = 0;
    for (std::size_t i = 0; i < 64; ++i) wrong += y[i] != x[(i + 32) % 64] ? 1 : 0;
    CHECK(wrong == 0);
}

TEST_CASE("lanes of a vector may be permuted, whole and in the narrower vectors of a tail") {
    // Interleaved pairs swapped: y[c] = x[c + 1 - 2 (c % 2)], written either by a permuted load or by a permuted store.
    std::vector<int> swapped;
    for (int lane = 0; lane < 16; ++lane) swapped.push_back(lane ^ 1);
    const Coord partner = Coord(Axis{1}) + 1 + (Coord(Axis{1}) % 2) * -2;
    for (const bool permute_store : {false, true}) {
        KernelWriter w("pairs", 54, 16);
        const int in = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
        const int out = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
        const Access permuted{Access::Kind::kVector, 1, swapped};
        w.open_loop();
        if (permute_store) {
            w.store_at(out, w.load(in), {Coord(Axis{0}), partner}, permuted);
        } else {
            w.store(out, w.load_at(in, {Coord(Axis{0}), partner}, permuted));
        }
        w.close_loop();
        std::vector<float> x = random_values(54);
        std::vector<float> y(54);
        CpuRun run(w.kernel(), find_target("native"));
        run.bind_rows(1, 54);
        run.bind("x", x.data());
        run.bind("y", y.data());
        run(0, 1);
        int wrong = 0;
        for (std::size_t i = 0; i < 54; ++i) wrong += y[i] != x[i ^ 1] ? 1 : 0;
        CHECK(wrong == 0);
    }
}

TEST_CASE("strided columns are gathered and scattered") {
    KernelWriter w("strided", 33, 8);
    const int in = w.tensor("x", Dtype::kF16, {w.rows(), w.columns()}, false, {3});
    const int out = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true, {2});
    w.open_loop();
    w.store(out, w.cast(w.load(in, {Access::Kind::kGather}), Dtype::kF32), {Access::Kind::kGather});
    w.close_loop();
    std::vector<std::uint16_t> x;
    for (const float value : random_values(99)) x.push_back(f32_to_f16(value));
    std::vector<float> y(66, -7);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(1, 99);
    run.bind("x", x.data());
    run.bind("y", y.data());
    run(0, 1);
    int wrong = 0;
    for (std::size_t i = 0; i < 33; ++i) wrong += y[2 * i] != f16_to_f32(x[3 * i]) || y[2 * i + 1] != -7 ? 1 : 0;
    CHECK(wrong == 0);
}

TEST_CASE("a data coordinate outside its extent reads zero") {
    // y[row, c] = table[token[row], c] and picked[row] = x[row, target[row]]
    KernelWriter w("lookup", 20, 16);
    const AxisId vocabulary = w.add_axis("vocabulary", kRuntimeExtent, true);
    const int token = w.tensor("token", Dtype::kI64, {w.rows()});
    const int target = w.tensor("target", Dtype::kI32, {w.rows()});
    const int table = w.tensor("table", Dtype::kF32, {vocabulary, w.columns()});
    const int out = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
    const int picked = w.tensor("picked", Dtype::kF32, {w.rows()}, true);
    const Access uniform{Access::Kind::kUniform};
    const ValueId token_value = w.load(token, uniform);
    const ValueId target_value = w.load(target, uniform);
    w.store(picked, w.load_at(table, {Coord(0), Coord::data_node(target_value)}, uniform), uniform);
    w.open_loop();
    w.store(out, w.load_at(table, {Coord::data_node(token_value), Coord(Axis{1})}, {Access::Kind::kVector}));
    w.close_loop();

    std::vector<std::int64_t> tokens = {2, -1, 0, 3, std::int64_t{1} << 40};
    std::vector<std::int32_t> targets = {0, 19, 20, -100, 7};
    std::vector<float> rows = random_values(3 * 20);
    std::vector<float> y(5 * 20, -1);
    std::vector<float> chosen(5, -1);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(5, 20);
    run.bind("vocabulary_extent", std::int64_t{3});
    for (const char* stride : {"token_rows_stride", "target_rows_stride", "picked_rows_stride"}) {
        run.bind(stride, std::int64_t{1});
    }
    run.bind("token", tokens.data());
    run.bind("target", targets.data());
    run.bind("table", rows.data());
    run.bind("y", y.data());
    run.bind("picked", chosen.data());
    run(0, 5);
    int wrong = 0;
    for (std::size_t row = 0; row < 5; ++row) {
        for (std::size_t c = 0; c < 20; ++c) {
            const bool inside = tokens[row] >= 0 && tokens[row] < 3;
            const float expected = inside ? rows[static_cast<std::size_t>(tokens[row]) * 20 + c] : 0;
            wrong += y[row * 20 + c] != expected ? 1 : 0;
        }
    }
    CHECK(wrong == 0);
    CHECK(chosen == std::vector<float>{rows[0], rows[19], 0, 0, rows[7]});
}

TEST_CASE("coordinates number rows and columns, and split a row axis by mixed radix") {
    // y[batch, head, c] = 10000 batch + 100 head + c, where a row is a (batch, head) pair
    KernelWriter w("iota", 37, 16);
    const AxisId head = w.add_axis("head", 3, true);
    w.kernel().row_axes = {w.rows(), head};
    const int out = w.tensor("y", Dtype::kF32, {w.rows(), head, w.columns()}, true);
    w.open_loop();
    const auto term = [&](AxisId axis, Dtype dtype, double factor) {
        return w.map(Op::kMul, {w.cast(w.coord(axis, dtype), Dtype::kF32), w.constant(Dtype::kF32, factor)});
    };
    const ValueId rows = w.map(Op::kAdd, {term(w.rows(), Dtype::kI64, 10000), term(head, Dtype::kI64, 100)});
    w.store(out, w.map(Op::kAdd, {rows, term(w.columns(), Dtype::kI32, 1)}));
    w.close_loop();
    std::vector<float> y(2 * 3 * 37);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(2, 3 * 37);
    run.bind("y_head_stride", std::int64_t{37});
    run.bind("y", y.data());
    run(0, 6);
    int wrong = 0;
    for (int i = 0; i < 2 * 3 * 37; ++i) {
        const int number = 10000 * (i / 111) + 100 * (i / 37 % 3) + i % 37;
        const auto expected = static_cast<float>(number);
        wrong += y[static_cast<std::size_t>(i)] != expected ? 1 : 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE("columns of several axes have a coordinate along each") {
    KernelWriter w("grouped", 60, 16);
    const AxisId group = w.add_axis("group", 4, false);
    const AxisId member = w.add_axis("member", 15, false);
    w.loop().axes = {group, member};
    const int out = w.tensor("y", Dtype::kI32, {w.rows(), group, member}, true, {15, 1});
    w.open_loop();
    const ValueId groups = w.map(Op::kMul, {w.coord(group, Dtype::kI32), w.constant(Dtype::kI32, 1000)}, Dtype::kI32);
    w.store(out, w.map(Op::kAdd, {groups, w.coord(member, Dtype::kI32)}, Dtype::kI32));
    w.close_loop();
    std::vector<std::int32_t> y(60);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(1, 60);
    run.bind("y", y.data());
    run(0, 1);
    int wrong = 0;
    for (int i = 0; i < 60; ++i) wrong += y[static_cast<std::size_t>(i)] != 1000 * (i / 15) + i % 15 ? 1 : 0;
    CHECK(wrong == 0);
}

TEST_CASE("kept values come back in a later loop, in their own dtype") {
    // y = x · 2 − max(x · 2), the product kept in bf16
    for (const std::int64_t columns : {64, 100}) {
        KernelWriter w("kept", columns, 16);
        const int in = w.tensor("x", Dtype::kBf16, {w.rows(), w.columns()});
        const int out = w.tensor("y", Dtype::kBf16, {w.rows(), w.columns()}, true);
        const int slot = w.slot(Dtype::kBf16, Residency::kShared);
        const int accumulator = w.accumulator(Monoid::kMax);
        w.open_loop();
        const ValueId doubled = w.map(Op::kMul, {w.load(in), w.constant(Dtype::kBf16, 2)}, Dtype::kBf16);
        w.keep(slot, doubled);
        w.accumulate(accumulator, doubled);
        w.close_loop();
        std::vector<ValueId> maximum;
        w.all_reduce({accumulator}, &maximum);
        w.open_loop();
        w.store(out, w.map(Op::kSub, {w.kept(slot, Dtype::kBf16), maximum[0]}, Dtype::kBf16));
        w.close_loop();
        std::vector<std::uint16_t> x = to_bf16(random_values(static_cast<std::size_t>(columns) * 2));
        std::vector<std::uint16_t> y(x.size());
        CpuRun run(w.kernel(), find_target("native"));
        run.bind_rows(2, columns);
        run.bind("x", x.data());
        run.bind("y", y.data());
        run(0, 2);
        int wrong = 0;
        for (std::int64_t row = 0; row < 2; ++row) {
            float largest = -kInfinity;
            for (std::int64_t c = 0; c < columns; ++c) {
                largest = std::max(largest, 2 * bf16_to_f32(x[static_cast<std::size_t>(row * columns + c)]));
            }
            for (std::int64_t c = 0; c < columns; ++c) {
                const auto i = static_cast<std::size_t>(row * columns + c);
                wrong += y[i] != f32_to_bf16(2 * bf16_to_f32(x[i]) - largest) ? 1 : 0;
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("slots too large for the stack are a failed check that names the bytes") {
    KernelWriter w("huge", 1 << 17, 16);
    const int in = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int slot = w.slot(Dtype::kF32);
    w.open_loop();
    w.keep(slot, w.load(in));
    w.close_loop();
    CHECK_THROWS_AS(compile_cpu(w.kernel(), find_target("native")), InternalError);
}

TEST_CASE("an accumulating store adds in the wide type and rounds once") {
    KernelWriter w("accumulate", 50, 16);
    const int in = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int out = w.tensor("y", Dtype::kBf16, {w.rows(), w.columns()}, true);
    w.open_loop();
    w.store(out, w.cast(w.load(in), Dtype::kBf16), {Access::Kind::kVector}, true);
    w.close_loop();
    std::vector<float> x = random_values(50);
    std::vector<std::uint16_t> y = to_bf16(random_values(50, 5));
    const std::vector<std::uint16_t> before = y;
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(1, 50);
    run.bind("x", x.data());
    run.bind("y", y.data());
    run(0, 1);
    int wrong = 0;
    for (std::size_t i = 0; i < 50; ++i) {
        const float added = bf16_to_f32(before[i]) + bf16_to_f32(f32_to_bf16(x[i]));
        wrong += y[i] != f32_to_bf16(added) ? 1 : 0;
    }
    CHECK(wrong == 0);
}

TEST_CASE("an output may overwrite its input in place") {
    Increment increment(100, 16);
    for (KernelTensor& tensor : increment.w.kernel().tensors) tensor.aliased = true;
    const std::vector<std::uint16_t> x = to_bf16(random_values(300));
    std::vector<std::uint16_t> y = x;
    CpuRun run(increment.w.kernel(), find_target("native"));
    run.bind_rows(3, 100);
    run.bind("x", y.data());
    run.bind("y", y.data());
    run(0, 3);
    CHECK(wrong_increments(x, y) == 0);
}

TEST_CASE("a large output passes the caches where its rows begin cache lines, and not elsewhere") {
    constexpr std::int64_t kColumns = 1040;  // 65 lines
    constexpr std::int64_t kRows = 16200;    // 67.4 MB
    KernelWriter w("large", kColumns, 16);
    const int in = w.tensor("x", Dtype::kF32, {w.columns()});
    const int out = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
    const ValueId row = w.cast(w.coord(w.rows(), Dtype::kI64), Dtype::kF32);
    w.open_loop();
    w.store(out, w.map(Op::kAdd, {w.load(in), row}));
    w.close_loop();
    CHECK(print_assembly(w.kernel(), find_target("x86-64-v4")).find("vmovntps") != std::string::npos);

    std::vector<float> x = random_values(kColumns);
    std::vector<float> memory(kRows * kColumns + 32);
    auto* line = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
    CpuRun run(w.kernel(), find_target("native"));
    for (float* y : {line, line + 1}) {
        std::fill(memory.begin(), memory.end(), -1.0F);
        run.bind_rows(kRows, kColumns);
        run.bind("x", x.data());
        run.bind("y", y);
        run(0, kRows);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
            const std::int64_t row_number = i / kColumns;
            const float expected = x[static_cast<std::size_t>(i % kColumns)] + static_cast<float>(row_number);
            wrong += y[i] != expected ? 1 : 0;
        }
        CHECK(wrong == 0);
        CHECK(y[kRows * kColumns] == -1);
    }
}

TEST_CASE("a multiplication and an addition stay two roundings") {
    KernelWriter w("unfused", 16, 16);
    const int in = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int out = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
    w.open_loop();
    const ValueId x_value = w.load(in);
    const ValueId product = w.map(Op::kMul, {x_value, x_value});
    w.store(out, w.map(Op::kSub, {product, w.constant(Dtype::kF32, 1)}));
    w.close_loop();
    // (1 + 2^-12)² rounds to 1 + 2^-11; fused, 2^-24 more would remain.
    std::vector<float> x(16, 1 + 0x1p-12F);
    std::vector<float> y(16);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(1, 16);
    run.bind("x", x.data());
    run.bind("y", y.data());
    run(0, 1);
    CHECK(y[0] == 0x1p-11F);
}

TEST_CASE("scalars arrive in their own dtype, and a run-time extent is a value") {
    KernelWriter w("scalars", 16, 16);
    const int out = w.tensor("y", Dtype::kF64, {w.rows(), w.columns()}, true);
    const int narrow = w.scalar("narrow", Dtype::kBf16);
    const int wide = w.scalar("wide", Dtype::kI64);
    w.open_loop();
    const ValueId first = w.cast(w.scalar_value(narrow), Dtype::kF64);
    const ValueId second = w.cast(w.scalar_value(wide), Dtype::kF64);
    w.store(out, w.map(Op::kAdd, {first, second}, Dtype::kF64));
    w.close_loop();
    std::vector<double> y(16);
    CpuRun run(w.kernel(), find_target("native"));
    run.bind_rows(1, 16);
    run.bind("y", y.data());
    run.bind_f32("narrow", 1.001F);
    run.bind("wide", std::int64_t{1} << 40);
    run(0, 1);
    CHECK(y[5] == 0x1p40 + bf16_to_f32(f32_to_bf16(1.001F)));
}

// total[batch, c] = the components of `monoid` over x[batch, rows, c], where results are the kernel's rows.
struct RowFold {
    RowFold(Monoid monoid, std::int64_t results, int vector) : w("rows", 1, vector) {
        const AxisId batch = w.add_axis("batch", kRuntimeExtent, true);
        kept = w.add_axis("kept", results, true);
        w.kernel().row_axes = {batch, kept};
        w.kernel().schedule.family = Family::kRowsReduction;
        const int in = w.tensor("x", Dtype::kBf16, {batch, w.rows(), kept});
        const int scale = w.tensor("scale", Dtype::kF32, {kept});
        const int first = w.tensor("first", Dtype::kF32, {batch, kept}, true);
        const int second = w.tensor("second", Dtype::kF32, {batch, kept}, true);
        const int accumulator = w.accumulator(monoid);
        const ValueId factor = w.load(scale, {Access::Kind::kUniform});
        RowsLoop loop;
        loop.axes = {w.rows()};
        Inst load{.kind = InstKind::kLoad, .id = w.kernel().value_count++, .dtype = Dtype::kBf16};
        load.index = in;
        load.coords = {Coord(Axis{batch}), Coord(Axis{w.rows()}), Coord(Axis{kept})};
        load.access.kind = Access::Kind::kGather;
        Inst wide{.kind = InstKind::kCast, .id = w.kernel().value_count++, .dtype = Dtype::kF32};
        wide.operands = {load.id};
        Inst product{.kind = InstKind::kMap, .id = w.kernel().value_count++, .dtype = Dtype::kF32};
        product.op = Op::kMul;
        product.operands = {wide.id, factor};
        Inst add{.kind = InstKind::kAccumulate, .operands = {product.id}, .index = accumulator};
        loop.body = {load, wide, product, add};
        w.kernel().body.emplace_back().node = loop;
        std::vector<ValueId> results_of;
        w.all_reduce({accumulator}, &results_of);
        w.store(first, results_of.front(), {Access::Kind::kUniform});
        w.store(second, results_of.back(), {Access::Kind::kUniform});
    }
    KernelWriter w;
    AxisId kept = 0;
};

TEST_CASE("a reduction over rows folds each result's column, whatever the lanes, ranges and strides") {
    for (const Monoid monoid : {Monoid::kSum, Monoid::kMax, Monoid::kMaxSumExp, Monoid::kWelford}) {
        for (const std::int64_t results : {1, 5, 32, 77, 1100}) {
            for (const std::int64_t stride : {1, 2}) {
                constexpr std::int64_t kBatches = 2;
                constexpr std::int64_t kRows = 300;
                RowFold fold(monoid, results, 16);
                const std::int64_t pitch = results * stride + 3;
                std::vector<std::uint16_t> x =
                    to_bf16(random_values(static_cast<std::size_t>(kBatches * kRows * pitch)));
                std::vector<float> scale = random_values(static_cast<std::size_t>(results), 9);
                std::vector<float> first(static_cast<std::size_t>(kBatches * results), -1);
                std::vector<float> second(first.size(), -1);
                CpuRun run(fold.w.kernel(), find_target("native"));
                run.bind("rows_extent", kRows);
                run.bind("batch_extent", kBatches);
                run.bind("x_batch_stride", kRows * pitch);
                run.bind("x_rows_stride", pitch);
                run.bind("x_kept_stride", stride);
                run.bind("scale_kept_stride", std::int64_t{1});
                for (const std::string out : {"first", "second"}) {
                    run.bind(out + "_batch_stride", results);
                    run.bind(out + "_kept_stride", std::int64_t{1});
                }
                run.bind("x", x.data());
                run.bind("scale", scale.data());
                run.bind("first", first.data());
                run.bind("second", second.data());
                run(0, 3);
                run(3, kBatches * results);
                int wrong = 0;
                for (std::int64_t i = 0; i < kBatches * results; ++i) {
                    double sum = 0;
                    double maximum = -kInfinity;
                    std::vector<double> column;
                    for (std::int64_t row = 0; row < kRows; ++row) {
                        const std::int64_t place = (i / results * kRows + row) * pitch + i % results * stride;
                        column.push_back(bf16_to_f32(x[static_cast<std::size_t>(place)]) *
                                         scale[static_cast<std::size_t>(i % results)]);
                        sum += column.back();
                        maximum = std::max(maximum, column.back());
                    }
                    double exps = 0;
                    double squares = 0;
                    for (const double value : column) {
                        exps += std::exp(value - maximum);
                        squares += (value - sum / kRows) * (value - sum / kRows);
                    }
                    const auto near = [](double got, double expected) {
                        return std::abs(got - expected) <= 1e-4 + 1e-5 * std::abs(expected);
                    };
                    const double a = first[static_cast<std::size_t>(i)];
                    const double b = second[static_cast<std::size_t>(i)];
                    bool right = false;
                    if (monoid == Monoid::kSum) right = near(a, sum);
                    if (monoid == Monoid::kMax) right = near(a, maximum);
                    if (monoid == Monoid::kMaxSumExp) right = near(a, maximum) && near(b, exps);
                    if (monoid == Monoid::kWelford) right = near(a, sum / kRows) && near(b, squares);
                    wrong += right ? 0 : 1;
                }
                CHECK_MESSAGE(wrong == 0, name(monoid), ", ", results, " results, stride ", stride);
            }
        }
    }
}

TEST_CASE("a sum over many rows rounds in blocks, not row by row") {
    RowFold fold(Monoid::kSum, 1, 16);
    constexpr std::int64_t kRows = 1 << 20;
    std::vector<std::uint16_t> x(kRows, f32_to_bf16(0.099609375F));
    float scale = 1;
    float total = 0;
    float second = 0;
    CpuRun run(fold.w.kernel(), find_target("native"));
    run.bind_rows(1, 1);
    run.bind("rows_extent", kRows);
    run.bind("x", x.data());
    run.bind("scale", &scale);
    run.bind("first", &total);
    run.bind("second", &second);
    run(0, 1);
    CHECK(std::abs(total - kRows * 0.099609375) <= 1e-5 * total);
}

}  // namespace rowjit
