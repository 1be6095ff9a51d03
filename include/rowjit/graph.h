// The expression language: a Graph holds a row computation, a Value is one node of it.
//
// Axes are named and live in one of two spaces. Row axes have run-time extents (64-bit); column axes are static. Every
// operation works on whole axes: a tensor that lacks an axis is broadcast along it, and nothing is ever guessed from an
// extent of 1. Wrong shapes, dtypes and axes throw Error(kInvalidGraph) from the call that made them.
//
//     Graph g;
//     Axis tokens = g.rows("tokens");
//     Value x = g.input("x", bf16, {tokens, 4096});
//     Value h = cast(x, f32);
//     g.output("y", cast(h * rsqrt(mean(h * h) + 1e-6), bf16));
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rowjit/dtype.h"
#include "rowjit/error.h"

namespace rowjit {

class GraphData;  // dsl/graph.h

// An axis of one graph.
struct Axis {
    std::int32_t id = -1;
};

// One dimension of a tensor declaration: an axis, or a plain column extent, whose axis is shared by every declaration
// of that extent in the graph. A tensor with two equal extents must name them apart with Graph::columns.
class Dim {
  public:
    Dim(Axis axis) : axis_(axis) {}                // NOLINT(google-explicit-constructor): a declaration's shorthand
    Dim(std::int64_t extent) : extent_(extent) {}  // NOLINT(google-explicit-constructor)
    Dim(int extent) : extent_(extent) {}           // NOLINT(google-explicit-constructor)
    Axis axis() const { return axis_; }
    std::int64_t extent() const { return extent_; }
    bool is_axis() const { return axis_.id >= 0; }

  private:
    Axis axis_;
    std::int64_t extent_ = 0;
};

// A node of a graph: a tensor of the graph's axes, or a scalar when it has none. Cheap to copy; valid as long as any
// Graph or Value of the same graph lives.
class Value {
  public:
    Value() = default;
    Value(std::shared_ptr<GraphData> graph, std::int32_t id) : graph_(std::move(graph)), id_(id) {}

    Dtype dtype() const;
    std::vector<Axis> axes() const;   // row axes first, then column axes, outermost first
    std::string description() const;  // "bf16[tokens, 4096]", as messages print it
    const std::shared_ptr<GraphData>& graph() const { return graph_; }
    std::int32_t id() const { return id_; }

    // The name that emitted code and messages use for this value; returns the value for chaining.
    Value named(std::string_view label) const;

  private:
    std::shared_ptr<GraphData> graph_;
    std::int32_t id_ = -1;
};

struct InputOptions {
    // Elements between neighbours along each column axis, in the declared order; empty means contiguous. Row strides
    // are launch arguments.
    std::vector<std::int64_t> column_strides;
};

struct OutputOptions {
    std::string alias;        // the input this output may overwrite in place; "" for a buffer of its own
    bool accumulate = false;  // add to what the buffer holds, in the output's dtype, rounding once
    std::vector<std::int64_t> column_strides;
};

class Graph {
  public:
    Graph();
    explicit Graph(std::shared_ptr<GraphData> data) : data_(std::move(data)) {}

    Axis rows(std::string_view name);                       // run-time extent, given at launch
    Axis rows(std::string_view name, std::int64_t extent);  // a row axis of static extent, e.g. heads
    // A row axis that always has `more` positions more than another: the offsets of segments have one more than there
    // are segments. A launch gives no extent for it.
    Axis rows(std::string_view name, Axis like, std::int64_t more);
    // Likewise one of as many positions as several have together, and `more`: all tokens of a batch of sequences.
    Axis rows(std::string_view name, std::initializer_list<Axis> product, std::int64_t more = 0);
    Axis columns(std::string_view name, std::int64_t extent);  // a named column axis
    Axis columns(std::int64_t extent);                         // the anonymous column axis of that extent
    std::int64_t extent(Axis axis) const;                      // -1 for a run-time extent

    Value input(std::string_view name, Dtype dtype, const std::vector<Dim>& dims, InputOptions options = {});

    // A run-time scalar: a launch argument that is never part of a kernel's identity. A launch that does not set it
    // uses `default_value`. The name is made unique by a numeric suffix when it is taken.
    Value scalar(std::string_view name, Dtype dtype, double default_value);

    // In bf16 and f16 arithmetic a constant or scalar is held in f32, as the frameworks hold a Python number beside a
    // narrow tensor; a cast or a store rounds it.
    Value constant(Dtype dtype, double value);
    Value iota(Axis axis, Dtype dtype = i32);  // the coordinate along `axis`: i32 for columns, i64 needed for rows
    Value extent_of(Axis axis, Dtype dtype);   // the number of positions along `axis`, known at launch for row axes

    void output(std::string_view name, Value value, OutputOptions options = {});

    // The text form, one node a line; parse(print()) is the same graph. See docs/text-form.md.
    std::string print() const;
    static Graph parse(std::string_view text, std::string_view source_name = "<text>");

    const std::shared_ptr<GraphData>& data() const { return data_; }

  private:
    std::shared_ptr<GraphData> data_;
};

// Arithmetic on equal dtypes; a bare number takes the other operand's dtype. bf16 and f16 results are rounded once from
// the f32 result, as the frameworks' elementwise kernels do.
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value operator+(double a, Value b);
Value operator-(double a, Value b);
Value operator*(double a, Value b);
Value operator/(double a, Value b);

// Comparisons give bool. An ordered comparison with NaN is false, `!=` is true.
Value operator<(Value a, Value b);
Value operator<=(Value a, Value b);
Value operator>(Value a, Value b);
Value operator>=(Value a, Value b);
Value operator==(Value a, Value b);
Value operator!=(Value a, Value b);
Value operator<(Value a, double b);
Value operator<=(Value a, double b);
Value operator>(Value a, double b);
Value operator>=(Value a, double b);
Value operator==(Value a, double b);
Value operator!=(Value a, double b);
Value operator&&(Value a, Value b);  // both operands are evaluated
Value operator||(Value a, Value b);
Value operator!(Value a);

Value minimum(Value a, Value b);  // NaN if either is NaN
Value maximum(Value a, Value b);
Value minimum(Value a, double b);
Value maximum(Value a, double b);
Value fma(Value a, Value b, Value c);  // a·b + c rounded once
Value abs(Value a);
Value sqrt(Value a);
Value rsqrt(Value a);
Value exp(Value a);
Value log(Value a);
Value log1p(Value a);
Value tanh(Value a);
Value erf(Value a);
Value sin(Value a);
Value cos(Value a);
Value floor(Value a);
Value floor_div(Value a, std::int64_t divisor);  // of whole numbers, rounded down; divisor > 0
Value floor_div(Value a, Value divisor);         // likewise; 0 where the divisor is not above 0
Value round(Value a);                            // to the nearest whole number, halves to even: torch.round
Value select(Value condition, Value if_true, Value if_false);

// `a`, through which no gradient flows: for what a result does not depend on, as a softmax on its maximum.
Value detach(Value a);

// A random number in [0, 1), a multiple of 2^-24, f32, of three i64: the same for the same three everywhere, on every
// device and under every schedule (Philox4x32-10; base/philox.h says which bits). Four neighbours from a position that
// is a multiple of four cost as much as one.
Value uniform(Value seed, Value offset, Value position);

// What `start` becomes when `step` is repeated until it changes nothing: one float for each row. step takes the state
// and gives the next, of the same dtype and axes, and may reduce the columns of a row; it is called once, to record it.
// A row's state stands still from the step on that gives it again, or NaN, and for good after most_steps. No gradient
// flows through it: to differentiate at a fixpoint, write the last step once more after it (docs/gradient.md).
Value fixpoint(Value start, const std::function<Value(Value)>& step, int most_steps);

// A rounding point: never elided and never moved across arithmetic. Float to integer truncates and saturates.
Value cast(Value a, Dtype dtype);

// Reductions over all column axes, or over one axis of either space. Sums of f32 accumulate in f32; sums of bf16 and
// f16 accumulate in f32 and round once. mean(x) is sum(x) divided by the extent. max and min give NaN if any element is
// NaN.
Value sum(Value a);
Value sum(Value a, Axis axis);
Value mean(Value a);
Value mean(Value a, Axis axis);
Value max(Value a);
Value max(Value a, Axis axis);
Value min(Value a);
Value min(Value a, Axis axis);

// Consecutive positions of a row axis, of any lengths, as variable-length attention has its sequences: segment s is
// [offsets[s], offsets[s + 1]). `offsets` is i32 or i64 over an axis one longer than `axis`, declared by
// Graph::rows(name, axis, 1), and does not decrease; what it gives beyond the reduced axis is cut off. Positions before
// the first offset or from the last on belong to no segment.
struct Segments {
    Axis axis;  // a position for each segment
    Value offsets;
};

// A reduction of `axis` to the segments, which take its place among the axes: in a fixed order, so bitwise repeatable.
// Of an empty segment the sum is 0, the maximum −∞ and the minimum ∞. A mean is a sum divided by segment_lengths.
Value sum(Value a, Axis axis, const Segments& segments);
Value max(Value a, Axis axis, const Segments& segments);
Value min(Value a, Axis axis, const Segments& segments);

// The last position of `sorted`, i32 or i64 along one row axis and not decreasing, whose element is at most `key`; −1
// where there is none. i64, over the axes of key.
Value search(Value sorted, Value key);

// The stable order of `ids`, i32 or i64 along one row axis, as those of rows of the axis `rows`: for each position
// along `places`, declared like the axis of the ids, the position of the id that comes there. Ids below 0 come first
// and are equal, as are those past the last row, which come last. i64, over `places`. Fewer than 2^32 ids, of fewer
// than 2^40 rows. There is no gradient.
Value order(Value ids, Axis places, Axis rows);

// For every position of `axis` the segment it belongs to, i64: −1 before the first, beyond them after the last.
Value segment_of(Axis axis, const Segments& segments);

// offsets[s + 1] − offsets[s], in the dtype of the offsets.
Value segment_lengths(const Segments& segments);

// `a`, a value for each segment, at every position of `axis`; 0 at those that belong to none. The adjoint of sum.
Value spread(Value a, Axis axis, const Segments& segments);

// A matrix product: result[kept of a…, kept of b…] = Σ a·b over the axes `contracted`, which both have and the result
// lacks; row axes come first. Of bf16, f16 and f32 in any pairing, accumulated in f32 and rounded once to `dtype`, or
// of f64. No operand need be transposed: hidden {tokens, h} and weight {vocabulary, h}, contracted over h, give logits
// {tokens, vocabulary}. Where the contracted are row axes it is a weight's gradient. Axes of both that are not
// contracted, a batch of products, are refused.
Value matmul(Value a, Value b, const std::vector<Axis>& contracted, Dtype dtype);
Value matmul(Value a, Value b, const std::vector<Axis>& contracted);  // to the dtype of a

// A coordinate: a quasi-affine expression of axes (sums, products with constants, floor division and remainder by
// positive constants) or an integer tensor's value.
class Coord;  // rowjit/coord.h

// `source` read at `coords`, one per axis of `source` in order: result[axes…] = source[coords(axes…)]. Axes of the
// result are those the coordinates mention, row axes first, in their order; one that a coordinate has behind another
// and that comes first in a later coordinate stands where that has it. A coordinate is checked to stay inside the
// source's extent where it is affine; a data coordinate outside it reads nothing and gives zero.
Value index(Value source, std::vector<Coord> coords);

// `source` with one column axis read at `coord` and every other axis as it is.
Value index(Value source, Axis axis, Coord coord);

}  // namespace rowjit
