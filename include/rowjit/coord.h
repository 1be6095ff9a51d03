// Coordinates of an index: where along a source axis each element of the result is read.
//
//     index(x, d, (Coord(d) + 64) % 128)                      // the rotary partner, half-split
//     index(gate_up, half, 0)                                  // the first of two packed halves
//     index(logits, vocabulary, target)                        // a data coordinate: one column per row
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rowjit/graph.h"

namespace rowjit {

// Immutable; copies share structure. Sums, products by a constant, floor division and remainder by a positive constant
// of axis coordinates and at most one integer value.
class Coord {
  public:
    enum class Kind : std::uint8_t { kConst, kAxis, kData, kAdd, kMul, kDiv, kMod };

    Coord(std::int64_t value);                        // NOLINT(google-explicit-constructor): reads as arithmetic
    Coord(int value) : Coord(std::int64_t{value}) {}  // NOLINT(google-explicit-constructor)
    Coord(Axis axis);                                 // NOLINT(google-explicit-constructor)
    Coord(const Value& data);                         // NOLINT(google-explicit-constructor): i32 or i64

    static Coord data_node(std::int32_t node);  // a node known to be an integer, by id (for passes)

    friend Coord operator+(const Coord& a, const Coord& b);
    friend Coord operator-(const Coord& a, const Coord& b);
    friend Coord operator*(const Coord& a, std::int64_t factor);
    friend Coord operator/(const Coord& a, std::int64_t divisor);  // floor; divisor > 0
    friend Coord operator%(const Coord& a, std::int64_t divisor);  // in [0, divisor); divisor > 0

    Kind kind() const;
    std::int64_t constant() const;  // kConst: the value; kMul, kDiv, kMod: the constant operand
    Axis axis() const;              // kAxis
    std::int32_t data() const;      // kData: the node's id
    Coord left() const;             // kAdd, kMul, kDiv, kMod
    Coord right() const;            // kAdd

    // This coordinate with every axis and every data node replaced.
    Coord substitute(const std::function<Coord(Axis)>& axis, const std::function<Coord(std::int32_t)>& data) const;

    // The value with each axis and data node given.
    std::int64_t evaluate(const std::function<std::int64_t(Axis)>& axis,
                          const std::function<std::int64_t(std::int32_t)>& data) const;

    // The least and greatest value with each axis in [0, extent); nothing when data takes part or an extent is unknown
    // (-1).
    bool bounds(const std::function<std::int64_t(Axis)>& extent, std::int64_t* low, std::int64_t* high) const;

    // The same coordinate without the quotients and remainders that the axes' extents (as above) decide.
    Coord decided(const std::function<std::int64_t(Axis)>& extent) const;

    std::vector<Axis> axes() const;                // mentioned, first mention first, no duplicates
    std::vector<std::int32_t> data_nodes() const;  // likewise
    bool is_axis(Axis axis) const;                 // exactly that axis's own coordinate

    // "(d + 64) % 128"; the callbacks name axes and data nodes.
    std::string print(const std::function<std::string(Axis)>& axis,
                      const std::function<std::string(std::int32_t)>& data) const;

    bool operator==(const Coord& other) const;
    std::size_t hash() const;  // equal for equal coordinates

  private:
    struct Node;
    explicit Coord(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
    static Coord make(Kind kind, std::int64_t constant, const Coord* left, const Coord* right);
    std::shared_ptr<const Node> node_;
};

}  // namespace rowjit
