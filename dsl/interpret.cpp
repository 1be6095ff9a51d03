#include "dsl/interpret.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/fail.h"
#include "base/parallel.h"
#include "dsl/contract.h"
#include "dsl/moments.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

using Buffer = std::vector<double>;
using Strides = std::vector<std::int64_t>;

constexpr std::int64_t kOutside = std::numeric_limits<std::int64_t>::min();  // an offset that reads nothing

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// A loop nest over a box with some operands, each advancing by its own stride along each axis. Neighbouring axes that
// every operand crosses without a gap become one, so that the innermost run is long.
class Loop {
  public:
    Loop(std::vector<std::int64_t> extents, std::vector<Strides> strides)
        : extents_(std::move(extents)), strides_(std::move(strides)) {
        for (std::size_t axis = extents_.size(); axis-- > 1;) {
            const bool dense = std::all_of(strides_.begin(), strides_.end(), [&](const Strides& operand) {
                return operand[axis - 1] == operand[axis] * extents_[axis];
            });
            if (!dense) continue;
            extents_[axis - 1] *= extents_[axis];
            extents_.erase(extents_.begin() + static_cast<std::ptrdiff_t>(axis));
            for (Strides& operand : strides_) {
                operand[axis - 1] = operand[axis];
                operand.erase(operand.begin() + static_cast<std::ptrdiff_t>(axis));
            }
        }
        if (extents_.empty()) {
            extents_.push_back(1);
            for (Strides& operand : strides_) operand.push_back(0);
        }
    }

    std::int64_t run() const { return extents_.back(); }                                 // length of the innermost run
    std::int64_t stride(std::size_t operand) const { return strides_[operand].back(); }  // along it
    bool is_one_run() const { return extents_.size() == 1; }
    std::int64_t size() const { return element_count(extents_); }

    // `body` with the operands' offsets at the start of each innermost run and its length, in row-major order; of the
    // runs that `first` and `last` lie in, what is between them.
    template <class Body>
    void for_each_run(std::int64_t first, std::int64_t last, Body body) const {
        if (first >= last) return;
        std::vector<std::int64_t> coordinate = coordinate_of(first / run());
        std::vector<std::int64_t> offsets(strides_.size(), 0);
        for (std::size_t axis = 0; axis < coordinate.size(); ++axis) advance(offsets, axis, coordinate[axis]);
        const std::size_t innermost = extents_.size() - 1;
        std::int64_t skipped = first % run();
        while (true) {
            const std::int64_t count = std::min(run() - skipped, last - first);
            advance(offsets, innermost, skipped);
            body(std::span<const std::int64_t>(offsets), count);
            advance(offsets, innermost, -skipped);
            first += count;
            if (first == last) return;
            skipped = 0;
            for (std::size_t axis = coordinate.size(); axis-- > 0;) {
                advance(offsets, axis, 1);
                if (++coordinate[axis] < extents_[axis]) break;
                advance(offsets, axis, -extents_[axis]);
                coordinate[axis] = 0;
            }
        }
    }

    template <class Body>
    void for_each_run(Body body) const {
        for_each_run(0, size(), body);
    }

    // The same by all processors: `body` with the place of the run's first element too.
    template <class Body>
    void for_each_run_in_parallel(Body body) const {
        in_parallel_pieces(at(size()), [&](std::size_t first, std::size_t last) {
            auto place = static_cast<std::int64_t>(first);
            for_each_run(place, static_cast<std::int64_t>(last),
                         [&](std::span<const std::int64_t> offsets, std::int64_t count) {
                             body(offsets, count, place);
                             place += count;
                         });
        });
    }

  private:
    // Of a run, by all axes but the innermost.
    std::vector<std::int64_t> coordinate_of(std::int64_t run) const {
        std::vector<std::int64_t> coordinate(extents_.size() - 1);
        for (std::size_t axis = coordinate.size(); axis-- > 0; run /= extents_[axis])
            coordinate[axis] = run % extents_[axis];
        return coordinate;
    }

    void advance(std::vector<std::int64_t>& offsets, std::size_t axis, std::int64_t steps) const {
        for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] += strides_[i][axis] * steps;
    }

    std::vector<std::int64_t> extents_;
    std::vector<Strides> strides_;
};

// A sum that is exact but for its last rounding (Knuth's two-sum), unless it leaves the finite numbers: a kernel that
// carries what it lost may be more exact than a plain sum in double, as where huge terms cancel.
template <class F>
double long_sum(std::span<const double> values, F f) {
    double total = 0;
    double lost = 0;
    for (const double value : values) {
        const double term = f(value);
        const double sum = total + term;
        const double part = sum - total;
        lost += (total - (sum - part)) + (term - part);
        total = sum;
    }
    return std::isfinite(total) ? total + lost : total;
}

// Σ f(x): halves down to blocks of 16 summed in order, in T.
template <class T, class F>
T pairwise_sum(std::span<const double> values, F f) {
    if constexpr (std::is_same_v<T, double>) return long_sum(values, f);
    if (values.size() <= 16) {
        T total = 0;
        for (const double value : values) total += f(static_cast<T>(value));
        return total;
    }
    const std::size_t half = values.size() / 2;
    return pairwise_sum<T>(values.first(half), f) + pairwise_sum<T>(values.subspan(half), f);
}

double extremum(std::span<const double> values, double sign) {
    double best = -std::numeric_limits<double>::infinity();
    for (const double value : values) {
        if (std::isnan(value)) return value;
        best = std::max(best, sign * value);
    }
    return sign * best;
}

// One reduction with accumulators and intermediate values of type T. The pairs are computed in two passes, as the
// expressions they stand for are: a maximum of ±∞ makes x − max NaN, and with it the sum.
template <class T>
double fold(Monoid monoid, int component, std::span<const double> values) {
    const auto itself = [](T x) { return x; };
    switch (monoid) {
        case Monoid::kSum: return pairwise_sum<T>(values, itself);
        case Monoid::kMax: return extremum(values, 1);
        case Monoid::kMin: return extremum(values, -1);
        case Monoid::kMaxSumExp: {
            const auto greatest = static_cast<T>(extremum(values, 1));
            if (component == 0) return greatest;
            return pairwise_sum<T>(values, [&](T x) { return std::exp(x - greatest); });
        }
        case Monoid::kWelford:
        case Monoid::kMoments: {
            const T sum = pairwise_sum<T>(values, itself);
            const auto count = static_cast<T>(values.size());
            const T mean = sum / count;
            if (component == kMomentCount) return count;
            if (component == kMomentSum) return monoid == Monoid::kMoments ? sum : mean;
            return pairwise_sum<T>(values, [&](T x) { return (x - mean) * (x - mean); });
        }
        case Monoid::kDivergence:
        case Monoid::kCrossEntropy:
        case Monoid::kWeighted:
        case Monoid::kEntropy:
        case Monoid::kGreatest:
        case Monoid::kExactSum: break;  // the planner's
    }
    RJ_CHECK(false, "monoid {}", static_cast<int>(monoid));
}

class Interpreter {
  public:
    Interpreter(const GraphData& graph, const Bindings& bindings, Rounding rounding)
        : graph_(graph),
          bindings_(bindings),
          rounding_(rounding),
          values_(at(graph.size())),
          rounds_(at(graph.size())) {}

    Tensors run() {
        const std::vector<NodeId> order = graph_.live_nodes();
        std::vector<NodeId> last_user(at(graph_.size()), -1);
        for (const NodeId id : order) {
            const Node& node = graph_.node(id);
            // A step is repeated: what it reads is held until the end.
            const bool repeated = node.state >= 0 || node.kind == NodeKind::kFix;
            const bool moves = node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex;
            rounds_[at(id)] = is_narrow(node.dtype) && !moves;
            for (const NodeId arg : node.args) {
                last_user[at(arg)] = repeated ? graph_.size() : std::max(last_user[at(arg)], id);
                rounds_[at(id)] = rounds_[at(id)] || rounds_[at(arg)];
            }
        }
        for (const OutputInfo& output : graph_.outputs()) {
            last_user[at(output.node)] = graph_.size();
            if (rounds_once(output)) last_user[at(graph_.node(output.node).args[0])] = graph_.size();
        }
        for (const NodeId id : order) {
            if (graph_.node(id).state >= 0) {
                steps_[graph_.node(id).state].push_back(id);
                continue;
            }
            evaluate(id);
            for (const NodeId arg : graph_.node(id).args) {
                if (last_user[at(arg)] == id) release(arg);
            }
        }
        Tensors results;
        for (const OutputInfo& output : graph_.outputs()) results[output.name] = result(output);
        return results;
    }

  private:
    // A node's elements: its own, or those of a bound tensor.
    struct Elements {
        Buffer own;
        const double* data = nullptr;
    };

    const double* data(NodeId id) const { return values_[at(id)].data; }

    // Memory of nodes whose users have run is given to others: to map new pages took an eighth of the time.
    void release(NodeId id) {
        if (!values_[at(id)].own.empty()) spare_.push_back(std::move(values_[at(id)].own));
        values_[at(id)] = {};
    }

    Buffer buffer(std::size_t elements) {
        const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const Buffer& spare) {
            return spare.size() >= elements && spare.size() / 2 <= elements;
        });
        if (fits == spare_.end()) return Buffer(elements);
        Buffer found = std::move(*fits);
        spare_.erase(fits);
        found.resize(elements);
        return found;
    }
    std::int64_t extent(AxisId axis) const { return extent_of(graph_, axis, bindings_.rows); }

    std::vector<std::int64_t> extents(const std::vector<AxisId>& axes) const {
        std::vector<std::int64_t> found;
        for (const AxisId axis : axes) found.push_back(extent(axis));
        return found;
    }

    // The strides, along each of `over`, of a contiguous tensor of `axes`; 0 along an axis it lacks.
    Strides strides(const std::vector<AxisId>& over, const std::vector<AxisId>& axes) const {
        Strides found(over.size(), 0);
        std::int64_t stride = 1;
        for (std::size_t i = axes.size(); i-- > 0;) {
            const auto position = std::find(over.begin(), over.end(), axes[i]);
            if (position != over.end()) found[static_cast<std::size_t>(position - over.begin())] = stride;
            stride *= extent(axes[i]);
        }
        return found;
    }

    const Tensor& bound(const std::string& name, std::string_view what, const Node& node) const {
        const auto found = bindings_.tensors.find(name);
        if (found == bindings_.tensors.end()) {
            fail(ErrorCode::kInvalidArgument, "{} '{}' is not bound; give its tensor", what, name);
        }
        const Tensor& tensor = found->second;
        if (tensor.dtype != node.dtype) {
            fail(ErrorCode::kInvalidArgument, "{} '{}': the tensor bound is {}, the graph wants {}", what, name,
                 rowjit::name(tensor.dtype), rowjit::name(node.dtype));
        }
        if (tensor.extents != extents(node.axes) || std::ssize(tensor.values) != element_count(tensor.extents)) {
            fail(ErrorCode::kInvalidArgument, "{} '{}': the tensor bound is [{}] with {} values, the graph wants [{}]",
                 what, name, fmt::join(tensor.extents, ", "), tensor.values.size(),
                 fmt::join(extents(node.axes), ", "));
        }
        return tensor;
    }

    void evaluate(NodeId id) {
        const Node& node = graph_.node(id);
        Elements& result = values_[at(id)];
        if (node.kind == NodeKind::kInput) {
            result.data = bound(node.name, "input", node).values.data();
            return;
        }
        result.own = buffer(at(element_count(extents(node.axes))));
        switch (node.kind) {
            case NodeKind::kScalar: result.own[0] = held(node.dtype, scalar(node)); break;
            case NodeKind::kConst: result.own[0] = held(node.dtype, node.value); break;
            case NodeKind::kExtent: result.own[0] = held(node.dtype, static_cast<double>(extent(node.axis))); break;
            case NodeKind::kIota:
                for (std::size_t i = 0; i < result.own.size(); ++i) result.own[i] = static_cast<double>(i);
                break;
            case NodeKind::kMap: map(node, result.own); break;
            case NodeKind::kCast: cast(node, result.own); break;
            case NodeKind::kIndex: index(node, result.own); break;
            case NodeKind::kReduce:
                node.is_segmented() ? reduce_segments(node, result.own) : reduce(node, result.own);
                break;
            case NodeKind::kSearch: search(node, result.own); break;
            case NodeKind::kOrder: order(node, result.own); break;
            case NodeKind::kFix: fix(node, result.own); break;
            case NodeKind::kMatmul: matmul(node, result.own); break;
            case NodeKind::kState:  // the fix's
            case NodeKind::kInput:
            case NodeKind::kPartialReduce:
            case NodeKind::kDigitCounts:
            case NodeKind::kSumWhere: break;  // the planner's
        }
        result.data = result.own.data();
    }

    double scalar(const Node& node) const {
        const auto found = bindings_.scalars.find(node.name);
        return found != bindings_.scalars.end() ? found->second : node.value;
    }

    // A number that takes part in arithmetic of `dtype`: f32 beside narrow floats, as the frameworks hold it.
    double held(Dtype dtype, double value) const {
        if (rounding_ == Rounding::kExact) return value;
        return round_to(is_narrow(dtype) ? Dtype::kF32 : dtype, value);
    }

    // Arithmetic results: narrow floats from the f32 result, as their kernels compute.
    void round(Dtype dtype, std::span<double> buffer) const {
        if (dtype == Dtype::kBool || (is_float(dtype) && rounding_ == Rounding::kExact)) return;
        if (is_narrow(dtype)) {
            for (double& value : buffer) value = round_to(dtype, static_cast<float>(value));
        } else {
            for (double& value : buffer) value = round_to(dtype, value);
        }
    }

    void map(const Node& node, Buffer& result) const {
        static constexpr double kAbsent = 0;
        std::array<const double*, 3> operands = {&kAbsent, &kAbsent, &kAbsent};
        std::vector<Strides> operand_strides(3, Strides(node.axes.size(), 0));
        for (std::size_t i = 0; i < node.args.size(); ++i) {
            operands[i] = data(node.args[i]);
            operand_strides[i] = strides(node.axes, graph_.node(node.args[i]).axes);
        }
        const Loop loop(extents(node.axes), std::move(operand_strides));
        const auto reference = info(node.op).reference;
        loop.for_each_run_in_parallel(
            [&](std::span<const std::int64_t> offsets, std::int64_t count, std::int64_t place) {
                const double* a = operands[0] + offsets[0];
                const double* b = operands[1] + offsets[1];
                const double* c = operands[2] + offsets[2];
                const std::span<double> out(result.data() + place, at(count));
                for (double& element : out) {
                    element = reference(*a, *b, *c);
                    a += loop.stride(0);
                    b += loop.stride(1);
                    c += loop.stride(2);
                }
                round(node.dtype, out);
            });
    }

    void cast(const Node& node, Buffer& result) const {
        const double* source = data(node.args[0]);
        const bool rounds = !is_float(node.dtype) || rounding_ == Rounding::kEager;
        in_parallel_pieces(result.size(), [&](std::size_t first, std::size_t last) {
            for (std::size_t i = first; i < last; ++i) result[i] = rounds ? round_to(node.dtype, source[i]) : source[i];
        });
    }

    double fold_row(const Node& node, std::span<const double> values) const {
        const bool wide = rounding_ == Rounding::kExact || !is_float(node.dtype) || node.dtype == Dtype::kF64;
        return wide ? fold<double>(node.monoid, node.component, values)
                    : fold<float>(node.monoid, node.component, values);
    }

    void reduce(const Node& node, Buffer& result) const {
        const std::vector<AxisId>& from = graph_.node(node.args[0]).axes;
        const double* source = data(node.args[0]);
        const Loop kept(extents(node.axes), {strides(node.axes, from)});
        const Loop reduced(extents(node.reduced), {strides(node.reduced, from)});
        const std::int64_t length = element_count(extents(node.reduced));
        if (length == 0) {
            std::fill(result.begin(), result.end(), fold_row(node, {}));
            return round(node.dtype, result);
        }
        const bool contiguous = reduced.is_one_run() && (reduced.stride(0) == 1 || length == 1);
        // A reduction across rows gathers as many neighbouring results at a time as share a cache line of the source.
        constexpr std::int64_t kBlock = 8;
        Buffer gathered(contiguous ? 0 : at(kBlock * length));
        double* out = result.data();
        kept.for_each_run([&](std::span<const std::int64_t> offsets, std::int64_t count) {
            for (std::int64_t first = 0; first < count; first += kBlock) {
                const std::int64_t block = std::min(kBlock, count - first);
                const double* start = source + offsets[0] + first * kept.stride(0);
                if (!contiguous) gather(reduced, start, kept.stride(0), block, length, gathered);
                for (std::int64_t i = 0; i < block; ++i) {
                    const double* row = contiguous ? start + i * kept.stride(0) : gathered.data() + i * length;
                    *out++ = fold_row(node, {row, at(length)});
                }
            }
        });
        round(node.dtype, result);
    }

    // Eager: products and sums in f32, in the order of the contracted axes, as the longest chain of a GEMM would add
    // them.
    void matmul(const Node& node, Buffer& result) const {
        const std::vector<AxisId>& left = graph_.node(node.args[0]).axes;
        const std::vector<AxisId>& right = graph_.node(node.args[1]).axes;
        std::vector<AxisId> rows;
        std::vector<AxisId> columns;
        for (const AxisId axis : node.axes)
            (std::find(left.begin(), left.end(), axis) != left.end() ? rows : columns).push_back(axis);
        const auto all = [&](const std::vector<AxisId>& axes) { return places(axes, left, right, node.axes); };
        const ProductPlaces where = {all(rows), all(columns), all(node.reduced)};
        const bool wide = rounding_ == Rounding::kExact || node.dtype == Dtype::kF64;
        const auto sums = wide ? contract<double> : contract<float>;
        sums(where, data(node.args[0]), data(node.args[1]), result.data());
        round(node.dtype, result);
    }

    // Every position along `over`, innermost last, in tensors of those axes.
    std::vector<ProductPlace> places(const std::vector<AxisId>& over, const std::vector<AxisId>& left,
                                     const std::vector<AxisId>& right, const std::vector<AxisId>& result) const {
        std::vector<ProductPlace> found;
        const Loop loop(extents(over), {strides(over, left), strides(over, right), strides(over, result)});
        loop.for_each_run([&](std::span<const std::int64_t> offsets, std::int64_t count) {
            for (std::int64_t i = 0; i < count; ++i)
                found.push_back({offsets[0] + i * loop.stride(0), offsets[1] + i * loop.stride(1),
                                 offsets[2] + i * loop.stride(2)});
        });
        return found;
    }

    // All rows take as many steps as the slowest of them; those that stand still do.
    void fix(const Node& node, Buffer& result) {
        const double* start = data(graph_.node(node.args[0]).args[0]);
        result.assign(start, start + result.size());
        std::vector<bool> still(result.size(), false);
        for (int step = 0; step < node.most_steps; ++step) {
            values_[at(node.args[0])].data = result.data();
            for (const NodeId id : steps_.at(node.args[0])) {
                if (id != node.args[0]) evaluate(id);
            }
            const double* next = data(node.args[1]);
            for (std::size_t row = 0; row < result.size(); ++row) {
                if (still[row]) continue;
                still[row] = next[row] == result[row] || std::isnan(next[row]);
                result[row] = next[row];
            }
            if (std::all_of(still.begin(), still.end(), [](bool row) { return row; })) return;
        }
    }

    void reduce_segments(const Node& node, Buffer& result) const {
        const std::vector<AxisId>& from = graph_.node(node.args[0]).axes;
        const auto reduced = std::find(from.begin(), from.end(), node.reduced[0]);
        const std::int64_t length = extent(node.reduced[0]);
        const std::int64_t segments = extent(node.axis);
        const std::int64_t inner = element_count(extents({reduced + 1, from.end()}));
        const std::int64_t outer = element_count(extents({from.begin(), reduced}));
        const auto offset = [&](std::int64_t i) {
            return std::clamp(static_cast<std::int64_t>(data(node.args[1])[i]), std::int64_t{0}, length);
        };
        const double* source = data(node.args[0]);
        double* out = result.data();
        Buffer gathered;
        for (std::int64_t before = 0; before < outer; ++before) {
            for (std::int64_t segment = 0; segment < segments; ++segment) {
                for (std::int64_t i = 0; i < inner; ++i) {
                    gathered.clear();
                    for (std::int64_t t = offset(segment); t < offset(segment + 1); ++t)
                        gathered.push_back(source[(before * length + t) * inner + i]);
                    *out++ = fold_row(node, gathered);
                }
            }
        }
        round(node.dtype, result);
    }

    // Where the elements are not sorted emitted code may find another place, but none outside.
    void search(const Node& node, Buffer& result) const {
        const double* sorted = data(node.args[0]);
        const double* keys = data(node.args[1]);
        const std::int64_t count = extent(graph_.node(node.args[0]).axes[0]);
        for (std::size_t i = 0; i < result.size(); ++i) {
            std::int64_t low = 0;
            std::int64_t middle = count - 1;
            for (std::int64_t high = count; low < high; middle = (low + high) / 2) {
                (sorted[middle] <= keys[i] ? low : high) = sorted[middle] <= keys[i] ? middle + 1 : middle;
            }
            result[i] = static_cast<double>(low - 1);
        }
    }

    void order(const Node& node, Buffer& result) const {
        const double* ids = data(node.args[0]);
        const auto rows = static_cast<double>(extent(node.axis));
        std::iota(result.begin(), result.end(), 0.0);
        const auto row_at = [&](double position) {
            return std::clamp(ids[at(static_cast<std::int64_t>(position))], -1.0, rows);
        };
        std::stable_sort(result.begin(), result.end(), [&](double a, double b) { return row_at(a) < row_at(b); });
    }

    static void gather(const Loop& reduced, const double* start, std::int64_t step, std::int64_t block,
                       std::int64_t length, Buffer& gathered) {
        std::int64_t position = 0;
        reduced.for_each_run([&](std::span<const std::int64_t> offsets, std::int64_t count) {
            for (std::int64_t k = 0; k < count; ++k, ++position) {
                const double* element = start + offsets[0] + k * reduced.stride(0);
                for (std::int64_t i = 0; i < block; ++i) gathered[at(i * length + position)] = element[i * step];
            }
        });
    }

    // A coordinate's values over the box of `axes`.
    std::vector<std::int64_t> coordinate(const Coord& coord, const std::vector<AxisId>& axes) const {
        const std::vector<std::int64_t> box = extents(axes);
        std::vector<std::int64_t> where(at(graph_.axes().size()), 0);  // by axis
        const auto axis_value = [&](Axis axis) { return where[at(axis.id)]; };
        const auto data_value = [&](NodeId id) {
            const std::vector<AxisId>& over = graph_.node(id).axes;
            std::int64_t position = 0;
            for (const AxisId axis : over) position = position * extent(axis) + where[at(axis)];
            return static_cast<std::int64_t>(data(id)[position]);
        };
        std::vector<std::int64_t> result(at(element_count(box)));
        for (std::int64_t& value : result) {
            value = coord.evaluate(axis_value, data_value);
            for (std::size_t i = axes.size(); i-- > 0;) {
                if (++where[at(axes[i])] < box[i]) break;
                where[at(axes[i])] = 0;
            }
        }
        return result;
    }

    // The part of the source's offset that one coordinate decides, over the box of the axes it mentions.
    struct OffsetTable {
        std::vector<AxisId> axes;
        std::vector<std::int64_t> offsets;
    };

    OffsetTable offset_table(const Node& node, const Coord& coord, std::int64_t extent, std::int64_t stride) const {
        std::vector<AxisId> mentioned;
        for (const Axis axis : coord.axes()) mentioned.push_back(axis.id);
        for (const NodeId id : coord.data_nodes()) {
            const std::vector<AxisId>& axes = graph_.node(id).axes;
            mentioned.insert(mentioned.end(), axes.begin(), axes.end());
        }
        OffsetTable table;
        std::copy_if(node.axes.begin(), node.axes.end(), std::back_inserter(table.axes), [&](AxisId axis) {
            return std::find(mentioned.begin(), mentioned.end(), axis) != mentioned.end();
        });
        table.offsets = coordinate(coord, table.axes);
        for (std::int64_t& value : table.offsets) value = value >= 0 && value < extent ? value * stride : kOutside;
        return table;
    }

    void index(const Node& node, Buffer& result) const {
        const std::vector<AxisId>& from = graph_.node(node.args[0]).axes;
        const double* source = data(node.args[0]);
        const Strides source_strides = strides(from, from);
        std::vector<OffsetTable> tables;
        std::vector<Strides> table_strides;
        for (std::size_t i = 0; i < from.size(); ++i) {
            tables.push_back(offset_table(node, node.coords[i], extent(from[i]), source_strides[i]));
            table_strides.push_back(strides(node.axes, tables.back().axes));
        }
        const Loop loop(extents(node.axes), std::move(table_strides));
        loop.for_each_run_in_parallel(
            [&](std::span<const std::int64_t> offsets, std::int64_t count, std::int64_t place) {
                double* out = result.data() + place;
                for (std::int64_t i = 0; i < count; ++i) {
                    std::int64_t position = 0;
                    for (std::size_t t = 0; t < tables.size() && position != kOutside; ++t) {
                        const std::int64_t part = tables[t].offsets[at(offsets[t] + i * loop.stride(t))];
                        position = part == kOutside ? kOutside : position + part;
                    }
                    *out++ = position == kOutside ? 0 : source[position];
                }
            });
    }

    // Whether eager rounds f32 to this narrow output in its last step, and nothing to a narrow float before.
    bool rounds_once(const OutputInfo& output) const {
        const Node& node = graph_.node(output.node);
        if (rounding_ != Rounding::kEager || output.accumulate || node.kind != NodeKind::kCast) return false;
        return is_narrow(node.dtype) && graph_.node(node.args[0]).dtype == Dtype::kF32 && !rounds_[at(node.args[0])];
    }

    Tensor result(const OutputInfo& output) {
        const Node& node = graph_.node(output.node);
        const std::int64_t count = element_count(extents(node.axes));
        const double* values = data(output.node);
        Tensor tensor{node.dtype, extents(node.axes), Buffer(values, values + count), {}};
        if (rounds_once(output)) tensor.unrounded.assign(data(node.args[0]), data(node.args[0]) + count);
        // A constant or scalar is held wider than its dtype until it is stored.
        if (rounding_ == Rounding::kEager && node.axes.empty()) round(node.dtype, tensor.values);
        if (!output.accumulate) return tensor;
        const Tensor& before = bound(output.alias.empty() ? output.name : output.alias, "accumulating output", node);
        for (std::size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] += before.values[i];
        round(node.dtype, tensor.values);
        return tensor;
    }

    const GraphData& graph_;
    const Bindings& bindings_;
    Rounding rounding_;
    std::vector<Elements> values_;
    std::vector<bool> rounds_;  // a node, or what it is computed from, is rounded to a narrow float
    std::vector<Buffer> spare_;
    std::map<NodeId, std::vector<NodeId>> steps_;  // by state: the nodes that are computed from it, it first
};

}  // namespace

Tensors interpret(const GraphData& graph, const Bindings& bindings, Rounding rounding) {
    return Interpreter(graph, bindings, rounding).run();
}

}  // namespace rowjit
