#include "compiler/emit/gpu_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/kernel.h"
#include "dsl/ops.h"

namespace rowjit {
namespace {

constexpr std::size_t kLineLimit = 120;  // a comment that does not fit stands above its line

struct TypeRow {
    Dtype dtype;
    std::string_view storage;
    std::string_view value;
};

constexpr std::array kTypes = {
    TypeRow{Dtype::kBool, "rj_bool", "bool"},
    TypeRow{Dtype::kI32, "int", "int"},
    TypeRow{Dtype::kI64, "long long", "long long"},
    TypeRow{Dtype::kBf16, "rj_bf16", "float"},
    TypeRow{Dtype::kF16, "rj_f16", "float"},
    TypeRow{Dtype::kF32, "float", "float"},
    TypeRow{Dtype::kI8, "rj_i8", "int"},
    TypeRow{Dtype::kE4m3, "rj_e4m3", "float"},
    TypeRow{Dtype::kE5m2, "rj_e5m2", "float"},
};

const TypeRow& row_of(Dtype dtype) {
    for (const TypeRow& row : kTypes) {
        if (row.dtype == dtype) return row;
    }
    RJ_CHECK(false, "emit gpu: {} has no spelling", name(dtype));
}

std::string parenthesised_if(bool condition, const std::string& text) { return condition ? "(" + text + ")" : text; }

std::string float_literal(float value) {
    if (std::isnan(value)) return "rj_float(0x7fc00000u)";
    if (std::isinf(value)) return value > 0 ? "rj_float(0x7f800000u)" : "rj_float(0xff800000u)";
    std::string digits = fmt::format("{}", value);  // the shortest that reads back as the same value
    if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
    return parenthesised_if(std::signbit(value), digits + "f");
}

std::string integer_literal(Dtype dtype, double value) {
    const auto whole = static_cast<std::int64_t>(round_to(dtype, value));
    // The least integers have no literal of their own: -2147483648 is the negation of a wider one.
    if (whole == std::numeric_limits<std::int64_t>::min()) return "(-9223372036854775807ll - 1)";
    if (dtype == Dtype::kI32 && whole == std::numeric_limits<std::int32_t>::min()) return "(-2147483647 - 1)";
    return parenthesised_if(whole < 0, fmt::format("{}{}", whole, dtype == Dtype::kI64 ? "ll" : ""));
}

// Whether the coordinate is surely not negative, so that C's division and remainder are floor's.
bool non_negative(const Coord& coord) {
    switch (coord.kind()) {
        case Coord::Kind::kConst: return coord.constant() >= 0;
        case Coord::Kind::kAxis:
        case Coord::Kind::kMod: return true;
        case Coord::Kind::kData: return false;
        case Coord::Kind::kAdd: return non_negative(coord.left()) && non_negative(coord.right());
        case Coord::Kind::kMul: return coord.constant() >= 0 && non_negative(coord.left());
        case Coord::Kind::kDiv: return non_negative(coord.left());
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(coord.kind()));
}

std::string divided(const Coord& coord, const CoordNames& names, char operation, std::string_view floored) {
    const std::string left = gpu_coord(coord.left(), names);
    if (non_negative(coord.left())) return fmt::format("({} {} {})", left, operation, coord.constant());
    return fmt::format("{}({}, {})", floored, left, coord.constant());
}

// Comments may hold anything a graph's labels do; a line break or a trailing backslash would reach into the code.
std::string one_line(std::string_view comment) {
    std::string text(comment);
    for (char& character : text) {
        if (character == '\n' || character == '\r' || character == '\\') character = ' ';
    }
    return text;
}

}  // namespace

std::string gpu_vec_type(Dtype dtype, int lanes) {
    return fmt::format("rj_vec<{}, {}>", gpu_storage_type(dtype), lanes);
}

std::string_view gpu_storage_type(Dtype dtype) { return row_of(dtype).storage; }
std::string_view gpu_value_type(Dtype dtype) { return row_of(dtype).value; }

std::string gpu_literal(Dtype dtype, double value) {
    if (dtype == Dtype::kBool) return value != 0 ? "true" : "false";
    if (is_integer(dtype) || dtype == Dtype::kI8) return integer_literal(dtype, value);
    return float_literal(static_cast<float>(round_to(dtype, value)));
}

std::string gpu_operation(Op op, const std::string& a, const std::string& b) {
    return fmt::format(fmt::runtime(info(op).gpu), a, b);
}

std::string gpu_pair_literal(Dtype dtype, double value) {
    RJ_CHECK(is_narrow(dtype), "emit gpu: two {} in a word", name(dtype));
    std::uint16_t bits = 0;
    store_element(dtype, &bits, value);
    return fmt::format("0x{0:04x}{0:04x}u", bits);
}

std::string gpu_coord(const Coord& coord, const CoordNames& names) {
    switch (coord.kind()) {
        case Coord::Kind::kConst: return parenthesised_if(coord.constant() < 0, std::to_string(coord.constant()));
        case Coord::Kind::kAxis: return names.axis(coord.axis());
        case Coord::Kind::kData: return names.data(coord.data());
        case Coord::Kind::kAdd: {
            const std::string left = gpu_coord(coord.left(), names);
            const Coord right = coord.right();
            if (right.kind() == Coord::Kind::kConst && right.constant() < 0)
                return fmt::format("({} - {})", left, -right.constant());
            return fmt::format("({} + {})", left, gpu_coord(right, names));
        }
        case Coord::Kind::kMul: return fmt::format("({} * {})", gpu_coord(coord.left(), names), coord.constant());
        case Coord::Kind::kDiv: return divided(coord, names, '/', "rj_floor_div");
        case Coord::Kind::kMod: return divided(coord, names, '%', "rj_floor_mod");
    }
    RJ_CHECK(false, "coordinate kind {}", static_cast<int>(coord.kind()));
}

std::string gpu_joined(const std::vector<std::string>& parts, std::string_view separator) {
    return fmt::format("{}", fmt::join(parts, separator));
}

std::string gpu_scaled(const std::string& coordinate, const std::string& stride) {
    if (stride == "1") return coordinate;
    return coordinate == "0" || stride == "0" ? "0" : fmt::format("{} * {}", coordinate, stride);
}

std::string gpu_converted(Dtype dtype, const std::string& text) {
    return fmt::format("static_cast<{}>({})", gpu_value_type(dtype), text);
}

std::string NameTable::fresh(std::string_view wanted) {
    std::string found = is_reserved_word(wanted) ? fmt::format("{}_", wanted) : std::string(wanted);
    for (int suffix = 2; !taken_.insert(found).second; ++suffix) found = fmt::format("{}_{}", wanted, suffix);
    return found;
}

void SourceWriter::line(std::string_view text, std::string_view comment) {
    const std::string indentation(static_cast<std::size_t>(depth_) * 4, ' ');
    const std::string note = comment.empty() ? "" : "// " + one_line(comment);
    const bool fits = indentation.size() + text.size() + note.size() + 2 <= kLineLimit;
    if (!note.empty() && !fits) text_ += indentation + note + "\n";
    text_.append(indentation).append(text);
    if (!note.empty() && fits) text_ += "  " + note;
    text_ += '\n';
}

void SourceWriter::open(std::string_view text, std::string_view comment) {
    line(text.empty() ? std::string("{") : fmt::format("{} {{", text), comment);
    ++depth_;
}

void SourceWriter::close(std::string_view after) {
    --depth_;
    line(fmt::format("}}{}", after));
}

void SourceWriter::blank() {
    if (text_.empty() || text_.ends_with("\n\n") || text_.ends_with("{\n")) return;
    text_ += '\n';
}

}  // namespace rowjit
