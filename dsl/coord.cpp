// Quasi-affine coordinates, simplified as they are built so that equal coordinates usually compare equal.
#include "rowjit/coord.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/fail.h"
#include "base/floor_div.h"

namespace rowjit {

struct Coord::Node {
    Kind kind;
    std::int64_t constant = 0;
    std::int32_t reference = -1;  // axis or data node id
    std::shared_ptr<const Node> left;
    std::shared_ptr<const Node> right;
};

namespace {

// Data may hold anything; arithmetic on it wraps, as 64-bit integer instructions do, and lands outside the source.
std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t wrapping_mul(std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

// Constants stay far from overflow: no axis is that long.
constexpr std::int64_t kMaxConstant = std::int64_t{1} << 62;

std::int64_t checked(bool overflow, std::int64_t value) {
    if (overflow || value > kMaxConstant || value < -kMaxConstant) {
        fail(ErrorCode::kInvalidGraph, "coordinate: a constant beyond 2^62 in magnitude; no axis is that long");
    }
    return value;
}

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
    std::int64_t sum = 0;
    const bool overflow = __builtin_add_overflow(a, b, &sum);
    return checked(overflow, sum);
}

std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    const bool overflow = __builtin_mul_overflow(a, b, &product);
    return checked(overflow, product);
}

void require_positive(std::int64_t divisor, const char* what) {
    if (divisor <= 0)
        fail(ErrorCode::kInvalidGraph, "coordinate {} by {}: the divisor must be positive", what, divisor);
}

}  // namespace

Coord::Coord(std::int64_t value)
    : node_(std::make_shared<Node>(Node{Kind::kConst, checked(false, value), -1, nullptr, nullptr})) {}
Coord::Coord(Axis axis) : node_(std::make_shared<Node>(Node{Kind::kAxis, 0, axis.id, nullptr, nullptr})) {}

Coord::Coord(const Value& data) : node_(std::make_shared<Node>(Node{Kind::kData, 0, data.id(), nullptr, nullptr})) {
    if (!is_integer(data.dtype())) {
        fail(ErrorCode::kInvalidGraph, "coordinate: a data coordinate must be i32 or i64, not {}; cast it",
             data.description());
    }
}

Coord Coord::data_node(std::int32_t node) {
    return Coord(std::make_shared<Node>(Node{Kind::kData, 0, node, nullptr, nullptr}));
}

Coord::Kind Coord::kind() const { return node_->kind; }
std::int64_t Coord::constant() const { return node_->constant; }
Axis Coord::axis() const { return Axis{node_->reference}; }
std::int32_t Coord::data() const { return node_->reference; }
Coord Coord::left() const { return Coord(node_->left); }
Coord Coord::right() const { return Coord(node_->right); }

Coord Coord::make(Kind kind, std::int64_t constant, const Coord* left, const Coord* right) {
    return Coord(std::make_shared<Node>(
        Node{kind, constant, -1, left != nullptr ? left->node_ : nullptr, right != nullptr ? right->node_ : nullptr}));
}

Coord operator+(const Coord& a, const Coord& b) {
    if (a.kind() == Coord::Kind::kConst && b.kind() == Coord::Kind::kConst)
        return {checked_add(a.constant(), b.constant())};
    if (a.kind() == Coord::Kind::kConst) return b + a;  // constants stand last
    if (b.kind() == Coord::Kind::kConst) {
        if (b.constant() == 0) return a;
        if (a.kind() == Coord::Kind::kAdd && a.right().kind() == Coord::Kind::kConst) {
            return a.left() + Coord(checked_add(a.right().constant(), b.constant()));
        }
    } else if (b.kind() == Coord::Kind::kAdd) {
        return (a + b.left()) + b.right();  // sums lean left, as they are printed
    } else if (a.kind() == Coord::Kind::kAdd && a.right().kind() == Coord::Kind::kConst) {
        return (a.left() + b) + a.right();
    }
    return Coord::make(Coord::Kind::kAdd, 0, &a, &b);
}

Coord operator-(const Coord& a, const Coord& b) { return a + b * -1; }

Coord operator*(const Coord& a, std::int64_t factor) {
    if (factor == 0) return {0};
    if (factor == 1) return a;
    if (a.kind() == Coord::Kind::kConst) return {checked_mul(a.constant(), factor)};
    if (a.kind() == Coord::Kind::kMul) return a.left() * checked_mul(a.constant(), factor);
    checked(false, factor);
    if (a.kind() == Coord::Kind::kAdd) return a.left() * factor + a.right() * factor;
    return Coord::make(Coord::Kind::kMul, factor, &a, nullptr);
}

Coord operator/(const Coord& a, std::int64_t divisor) {
    require_positive(divisor, "division");
    if (divisor == 1) return a;
    if (a.kind() == Coord::Kind::kConst) return {floor_div(a.constant(), divisor)};
    return Coord::make(Coord::Kind::kDiv, divisor, &a, nullptr);
}

namespace {

// Whether a term of the sum is itself a remainder by the divisor, or by a multiple of it.
bool adds_remainder(const Coord& a, std::int64_t divisor) {
    if (a.kind() == Coord::Kind::kMod) return a.constant() % divisor == 0;
    return a.kind() == Coord::Kind::kAdd && (adds_remainder(a.left(), divisor) || adds_remainder(a.right(), divisor));
}

// What differs from `a` by a multiple of the divisor: without such remainders.
Coord without_remainders(const Coord& a, std::int64_t divisor) {
    const Coord::Kind kind = a.kind();
    if (kind == Coord::Kind::kMod && a.constant() % divisor == 0) return without_remainders(a.left(), divisor);
    if (kind != Coord::Kind::kAdd) return a;
    return without_remainders(a.left(), divisor) + without_remainders(a.right(), divisor);
}

// A shift of a shift around a row is one shift, by less than the row has columns, and so equal to others that come to
// the same column: of a chain of them there are no more than columns, and not one for each way through the chain.
// Arithmetic on data wraps, at another place where a remainder is left out.
Coord as_one_shift(const Coord& a, std::int64_t divisor) {
    if (!adds_remainder(a, divisor) || !a.data_nodes().empty()) return a;
    const Coord plain = without_remainders(a, divisor);
    const bool shifts = plain.kind() == Coord::Kind::kAdd && plain.right().kind() == Coord::Kind::kConst;
    return shifts ? plain.left() + Coord(floor_mod(plain.right().constant(), divisor)) : plain;
}

}  // namespace

Coord operator%(const Coord& a, std::int64_t divisor) {
    require_positive(divisor, "remainder");
    if (divisor == 1) return {0};
    if (a.kind() == Coord::Kind::kConst) return {floor_mod(a.constant(), divisor)};
    const Coord dividend = as_one_shift(a, divisor);
    if (dividend.kind() == Coord::Kind::kConst) return {floor_mod(dividend.constant(), divisor)};
    return Coord::make(Coord::Kind::kMod, divisor, &dividend, nullptr);
}

Coord Coord::substitute(const std::function<Coord(Axis)>& axis, const std::function<Coord(std::int32_t)>& data) const {
    switch (kind()) {
        case Kind::kConst: return *this;
        case Kind::kAxis: return axis(this->axis());
        case Kind::kData: return data(this->data());
        case Kind::kAdd: return left().substitute(axis, data) + right().substitute(axis, data);
        case Kind::kMul: return left().substitute(axis, data) * constant();
        case Kind::kDiv: return left().substitute(axis, data) / constant();
        case Kind::kMod: return left().substitute(axis, data) % constant();
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(kind()));
}

std::int64_t Coord::evaluate(const std::function<std::int64_t(Axis)>& axis,
                             const std::function<std::int64_t(std::int32_t)>& data) const {
    switch (kind()) {
        case Kind::kConst: return constant();
        case Kind::kAxis: return axis(this->axis());
        case Kind::kData: return data(this->data());
        case Kind::kAdd: return wrapping_add(left().evaluate(axis, data), right().evaluate(axis, data));
        case Kind::kMul: return wrapping_mul(left().evaluate(axis, data), constant());
        case Kind::kDiv: return floor_div(left().evaluate(axis, data), constant());
        case Kind::kMod: return floor_mod(left().evaluate(axis, data), constant());
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(kind()));
}

bool Coord::bounds(const std::function<std::int64_t(Axis)>& extent, std::int64_t* low, std::int64_t* high) const {
    switch (kind()) {
        case Kind::kConst: *low = *high = constant(); return true;
        case Kind::kAxis:
            *low = 0;
            *high = extent(axis()) - 1;
            return extent(axis()) >= 0;
        case Kind::kData: return false;
        case Kind::kAdd: {
            std::int64_t right_low = 0;
            std::int64_t right_high = 0;
            if (!left().bounds(extent, low, high) || !right().bounds(extent, &right_low, &right_high)) return false;
            return !__builtin_add_overflow(*low, right_low, low) && !__builtin_add_overflow(*high, right_high, high);
        }
        case Kind::kMul:
            if (!left().bounds(extent, low, high)) return false;
            if (constant() < 0) std::swap(*low, *high);
            return !__builtin_mul_overflow(*low, constant(), low) && !__builtin_mul_overflow(*high, constant(), high);
        case Kind::kDiv:
            if (!left().bounds(extent, low, high)) return false;
            *low = floor_div(*low, constant());
            *high = floor_div(*high, constant());
            return true;
        case Kind::kMod:
            // Exact when the whole range lies in one period, else the period itself.
            if (left().bounds(extent, low, high) && floor_div(*low, constant()) == floor_div(*high, constant())) {
                *low = floor_mod(*low, constant());
                *high = floor_mod(*high, constant());
                return true;
            }
            *low = 0;
            *high = constant() - 1;
            return data_nodes().empty();
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(kind()));
}

namespace {

// Adds the terms of the sum that are an axis's place times a multiple of the divisor to `multiples`, the others to
// `rest`.
void add_multiples(const Coord& a, std::int64_t divisor, Coord* multiples, Coord* rest) {
    if (a.kind() == Coord::Kind::kAdd) {
        add_multiples(a.left(), divisor, multiples, rest);
        add_multiples(a.right(), divisor, multiples, rest);
        return;
    }
    Coord* part = a.kind() == Coord::Kind::kMul && a.constant() % divisor == 0 ? multiples : rest;
    *part = *part + a;
}

// A sum of multiples of the divisor by it.
Coord divided(const Coord& multiples, std::int64_t divisor) {
    if (multiples.kind() == Coord::Kind::kAdd)
        return divided(multiples.left(), divisor) + divided(multiples.right(), divisor);
    return multiples.kind() == Coord::Kind::kMul ? multiples.left() * (multiples.constant() / divisor) : multiples;
}

}  // namespace

Coord Coord::decided(const std::function<std::int64_t(Axis)>& extent) const {
    switch (kind()) {
        case Kind::kConst:
        case Kind::kAxis:
        case Kind::kData: return *this;
        case Kind::kAdd: return left().decided(extent) + right().decided(extent);
        case Kind::kMul: return left().decided(extent) * constant();
        case Kind::kDiv:
        case Kind::kMod: break;
    }
    const bool divides = kind() == Kind::kDiv;
    const Coord dividend = left().decided(extent);
    Coord multiples = 0;
    Coord rest = dividend;
    if (dividend.data_nodes().empty()) {  // arithmetic on data wraps
        rest = 0;
        add_multiples(dividend, constant(), &multiples, &rest);
    }
    std::int64_t low = 0;
    std::int64_t high = 0;
    if (!rest.bounds(extent, &low, &high) || floor_div(low, constant()) != floor_div(high, constant()))
        return divides ? divided(multiples, constant()) + rest / constant() : rest % constant();
    const std::int64_t quotient = floor_div(low, constant());
    return divides ? divided(multiples, constant()) + Coord(quotient) : rest + Coord(-quotient * constant());
}

std::vector<Axis> Coord::axes() const {
    if (kind() == Kind::kAxis) return {axis()};
    std::vector<Axis> found;
    for (const auto& child : {node_->left, node_->right}) {
        if (!child) continue;
        for (const Axis axis : Coord(child).axes()) {
            const bool known = std::any_of(found.begin(), found.end(), [&](Axis a) { return a.id == axis.id; });
            if (!known) found.push_back(axis);
        }
    }
    return found;
}

std::vector<std::int32_t> Coord::data_nodes() const {
    if (kind() == Kind::kData) return {data()};
    std::vector<std::int32_t> found;
    for (const auto& child : {node_->left, node_->right}) {
        if (!child) continue;
        for (const std::int32_t node : Coord(child).data_nodes()) {
            if (std::find(found.begin(), found.end(), node) == found.end()) found.push_back(node);
        }
    }
    return found;
}

bool Coord::is_axis(Axis axis) const { return kind() == Kind::kAxis && node_->reference == axis.id; }

std::string Coord::print(const std::function<std::string(Axis)>& axis,
                         const std::function<std::string(std::int32_t)>& data) const {
    const auto operand = [&](const Coord& c) {
        const std::string text = c.print(axis, data);
        return c.kind() == Kind::kAdd ? "(" + text + ")" : text;
    };
    switch (kind()) {
        case Kind::kConst: return std::to_string(constant());
        case Kind::kAxis: return axis(this->axis());
        case Kind::kData: return data(this->data());
        case Kind::kAdd: {
            if (right().kind() == Kind::kConst && right().constant() < 0) {
                return fmt::format("{} - {}", left().print(axis, data), -right().constant());
            }
            return fmt::format("{} + {}", left().print(axis, data), right().print(axis, data));
        }
        case Kind::kMul: return fmt::format("{} * {}", operand(left()), constant());
        case Kind::kDiv: return fmt::format("({} / {})", operand(left()), constant());
        case Kind::kMod: return fmt::format("({} % {})", operand(left()), constant());
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(kind()));
}

std::size_t Coord::hash() const {
    // Of a small tree: factors apart from each other, so that neighbours and their sums differ.
    std::size_t h = static_cast<std::size_t>(kind()) + 31 * static_cast<std::size_t>(node_->constant) +
                    1009 * static_cast<std::size_t>(node_->reference);
    if (node_->left) h = h * 0x9E3779B97F4A7C15U + left().hash();
    if (node_->right) h = h * 0x9E3779B97F4A7C15U + right().hash();
    return h;
}

bool Coord::operator==(const Coord& other) const {
    if (node_ == other.node_) return true;
    if (kind() != other.kind() || node_->constant != other.node_->constant ||
        node_->reference != other.node_->reference) {
        return false;
    }
    if (node_->left && !(left() == other.left())) return false;
    return !node_->right || right() == other.right();
}

}  // namespace rowjit
