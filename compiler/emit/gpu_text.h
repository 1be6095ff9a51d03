// The spelling of types, constants and coordinates in emitted GPU source, and the text being written.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsl/ops.h"
#include "rowjit/coord.h"
#include "rowjit/dtype.h"

namespace rowjit {

std::string gpu_vec_type(Dtype dtype, int lanes);  // "rj_vec<rj_bf16, 8>"
std::string_view gpu_storage_type(Dtype dtype);    // "rj_bf16", "float", …: an element in memory
std::string_view gpu_value_type(Dtype dtype);      // "float" for bf16: an element in a register

// `value`, rounded to dtype, as an expression that can stand as any operand.
std::string gpu_literal(Dtype dtype, double value);

// The operation on operands that can stand as such.
std::string gpu_operation(Op op, const std::string& a, const std::string& b);

// A word of two such bf16 or f16.
std::string gpu_pair_literal(Dtype dtype, double value);

// How axes and data values read where a coordinate is written.
struct CoordNames {
    std::function<std::string(Axis)> axis;
    std::function<std::string(std::int32_t)> data;
};

// The coordinate as an expression that can stand as any operand. Its type is that of the names: int or long long.
std::string gpu_coord(const Coord& coord, const CoordNames& names);

std::string gpu_joined(const std::vector<std::string>& parts, std::string_view separator);

// A coordinate times what lies between two of its neighbours.
std::string gpu_scaled(const std::string& coordinate, const std::string& stride);
std::string gpu_converted(Dtype dtype, const std::string& text);  // to what the dtype is in a register

// Names of one kernel, each given once.
class NameTable {
  public:
    // `wanted`, or with a suffix when that means something already.
    std::string fresh(std::string_view wanted);

  private:
    std::set<std::string, std::less<>> taken_;
};

// Lines at the current indentation.
class SourceWriter {
  public:
    void line(std::string_view text, std::string_view comment = {});  // at the line's end, or above
    void open(std::string_view text, std::string_view comment = {});  // "text {", and indents
    void close(std::string_view after = {});                          // "}" and what ends the statement
    void blank();  // at most one in a row, and none after an opening line
    std::string take() { return std::move(text_); }

  private:
    std::string text_;
    int depth_ = 0;
};

}  // namespace rowjit
