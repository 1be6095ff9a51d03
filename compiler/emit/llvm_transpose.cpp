// A shuffle of two vectors for each vector and bit of the number of columns, where gathers load lane by lane. An even
// number is taken apart into every second element of two neighbours each. Of an odd number n, the elements of a column
// are in different lanes of the n vectors, in each lane one: which vector is where in the others' order goes up by the
// same step from lane to lane, modulo n, so that lanes turn by as many vectors as their place says, a bit of it at a
// time, and each vector is put in order then.
#include "compiler/emit/llvm_transpose.h"

#include <cstddef>

#include "compiler/emit/llvm_lanes.h"

namespace rowjit {
namespace {

using cpu_lanes::width;
using llvm::Value;

// By how many vectors each lane is turned: l / lanes, modulo n.
std::vector<unsigned> turns_of_lanes(unsigned lanes, unsigned n) {
    unsigned inverse = 0;
    while (inverse * lanes % n != 1 % n) ++inverse;
    std::vector<unsigned> turns;
    for (unsigned lane = 0; lane < lanes; ++lane) turns.push_back(lane * inverse % n);
    return turns;
}

// Each lane of vector i is that of vector i less, or plus, the lane's turns.
std::vector<Value*> turned(LaneBuilder& b, std::vector<Value*> vectors, const std::vector<unsigned>& turns,
                           bool forwards) {
    const auto n = static_cast<unsigned>(vectors.size());
    for (unsigned step = 1; step < n; step *= 2) {
        std::vector<int> mask;
        for (std::size_t lane = 0; lane < turns.size(); ++lane)
            mask.push_back(static_cast<int>((turns[lane] & step) != 0 ? turns.size() + lane : lane));
        std::vector<Value*> next;
        for (unsigned i = 0; i < n; ++i) {
            Value* other = vectors[(forwards ? i + n - step : i + step) % n];
            next.push_back(b.CreateShuffleVector(vectors[i], other, mask));
        }
        vectors = std::move(next);
    }
    return vectors;
}

// Which lane of its vector, as rows lie, has the element of each row.
std::vector<int> lanes_of_column(unsigned lanes, unsigned n, unsigned column) {
    std::vector<int> found;
    for (unsigned row = 0; row < lanes; ++row) found.push_back(static_cast<int>((row * n + column) % lanes));
    return found;
}

// Where column c is among the vectors whose lanes are turned.
unsigned place_of_column(unsigned lanes, unsigned n, unsigned column) {
    unsigned place = 0;
    while (place * lanes % n != column) ++place;
    return place;
}

std::vector<int> every_second(unsigned lanes, unsigned first) {
    std::vector<int> mask;
    for (unsigned lane = 0; lane < lanes; ++lane) mask.push_back(static_cast<int>(2 * lane + first));
    return mask;
}

// Lanes of two vectors in turn, from so many on.
std::vector<int> in_turn(unsigned lanes, unsigned from) {
    std::vector<int> mask;
    for (unsigned lane = 0; lane < lanes; ++lane)
        mask.push_back(static_cast<int>(from + lane / 2 + (lane % 2 == 0 ? 0 : lanes)));
    return mask;
}

}  // namespace

std::vector<Value*> columns_of_rows(LaneBuilder& b, std::vector<Value*> rows) {
    const auto n = static_cast<unsigned>(rows.size());
    if (n == 1) return rows;
    const unsigned lanes = width(rows[0]);
    std::vector<Value*> columns(n);
    if (n % 2 == 0) {
        for (unsigned first : {0U, 1U}) {
            std::vector<Value*> half;
            for (unsigned i = 0; i < n; i += 2)
                half.push_back(b.CreateShuffleVector(rows[i], rows[i + 1], every_second(lanes, first)));
            half = columns_of_rows(b, std::move(half));
            for (unsigned i = 0; i < n / 2; ++i) columns[2 * i + first] = half[i];
        }
        return columns;
    }
    const std::vector<Value*> mixed = turned(b, std::move(rows), turns_of_lanes(lanes, n), true);
    for (unsigned column = 0; column < n; ++column) {
        columns[column] =
            b.CreateShuffleVector(mixed[place_of_column(lanes, n, column)], lanes_of_column(lanes, n, column));
    }
    return columns;
}

std::vector<Value*> rows_of_columns(LaneBuilder& b, std::vector<Value*> columns) {
    const auto n = static_cast<unsigned>(columns.size());
    if (n == 1) return columns;
    const unsigned lanes = width(columns[0]);
    if (n % 2 == 0) {
        std::vector<std::vector<Value*>> halves;
        for (unsigned first : {0U, 1U}) {
            std::vector<Value*> half;
            for (unsigned i = first; i < n; i += 2) half.push_back(columns[i]);
            halves.push_back(rows_of_columns(b, std::move(half)));
        }
        std::vector<Value*> rows;
        for (unsigned i = 0; i < n / 2; ++i) {
            for (const unsigned from : {0U, lanes / 2})
                rows.push_back(b.CreateShuffleVector(halves[0][i], halves[1][i], in_turn(lanes, from)));
        }
        return rows;
    }
    std::vector<Value*> mixed(n);
    for (unsigned column = 0; column < n; ++column) {
        const std::vector<int> found = lanes_of_column(lanes, n, column);
        std::vector<int> mask(lanes);
        for (unsigned row = 0; row < lanes; ++row) mask[static_cast<std::size_t>(found[row])] = static_cast<int>(row);
        mixed[place_of_column(lanes, n, column)] = b.CreateShuffleVector(columns[column], mask);
    }
    return turned(b, std::move(mixed), turns_of_lanes(lanes, n), false);
}

}  // namespace rowjit
