// Solving the coordinates, equation by equation. That a solution is one is tried in preimage_trial.
#include "dsl/preimage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/fail.h"
#include "base/floor_div.h"
#include "dsl/preimage_trial.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Unknowns are axes that the graph does not have: an axis of the result, apart from the source's axis of the same id;
// and the parts of one that its equation leaves open (d/2 = s says nothing about d%2), which a later equation may yet
// decide. A free axis is a part that no equation decides: it is summed over.
constexpr AxisId kUnknown = 1 << 24;
constexpr AxisId kPart = 1 << 25;
constexpr AxisId kFree = 1 << 26;

struct Term {
    Coord unit;  // no sum, product or constant
    std::int64_t weight;
};

// A coordinate as a constant and weighted terms.
void split(const Coord& coord, std::int64_t weight, std::vector<Term>* terms, std::int64_t* constant) {
    switch (coord.kind()) {
        case Coord::Kind::kConst: *constant += weight * coord.constant(); return;
        case Coord::Kind::kAdd:
            split(coord.left(), weight, terms, constant);
            split(coord.right(), weight, terms, constant);
            return;
        case Coord::Kind::kMul: split(coord.left(), weight * coord.constant(), terms, constant); return;
        default: terms->push_back({coord, weight});
    }
}

bool has_data(const Coord& coord) { return !coord.data_nodes().empty(); }

class Solver {
  public:
    Solver(GraphData& graph, const Node& index, const Support& support)
        : graph_(graph), index_(index), source_axes_(graph.node(index.args[0]).axes), support_(needed(support)) {}

    Preimage run() {
        refuse_rows_at_data();
        const std::vector<AxisId>& source = source_axes_;
        for (const auto& [axis, range] : support_) {
            if (range.low == range.high) return {.empty = true};
        }
        std::vector<std::size_t> left;
        // Axes that stand for themselves first: most do, and data lies along them.
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (index_.coords[i].is_axis(Axis{source[i]})) {
                solve_at(i);
            } else {
                left.push_back(i);
            }
        }
        std::erase_if(left, [&](std::size_t i) { return solve_involution(index_.coords[i], source[i]); });
        narrow();
        for (const std::size_t i : left) solve_at(i);
        Preimage result = finished();
        check_preimage(graph_, index_, support_, result);
        return result;
    }

  private:
    // What of the support makes a solution simpler: an axis that stands for itself needs no condition.
    Support needed(Support support) const {
        std::set<AxisId> read_elsewhere;
        for (std::size_t i = 0; i < source_axes_.size(); ++i) {
            if (has_data(index_.coords[i])) return {};
            if (index_.coords[i].is_axis(Axis{source_axes_[i]})) continue;
            for (const Axis axis : index_.coords[i].axes()) read_elsewhere.insert(axis.id);
        }
        std::erase_if(support, [&](const auto& narrowed) {
            const auto& [axis, range] = narrowed;
            return !read_elsewhere.contains(axis) || range == ColumnRange{0, graph_.axis(axis).extent};
        });
        return support;
    }

    ColumnRange range_of(AxisId axis) const {
        const auto narrowed = support_.find(axis);
        return narrowed == support_.end() ? ColumnRange{0, graph_.axis(axis).extent} : narrowed->second;
    }

    // An unknown of which only a range is asked for is that range's first place and an unknown of fewer; one that is
    // solved already, as itself or by an involution of the range, has the source's place there.
    void narrow() {
        for (const auto& [axis, range] : support_) {
            const AxisId unknown = kUnknown + axis;
            if (solved_.contains(unknown)) {
                require(Coord(Axis{axis}), range.low, range.high - 1);
            } else {
                assign(unknown, new_part(range.high - range.low, kPart) + Coord(range.low));
            }
        }
    }

    void solve_at(std::size_t i) {
        const auto as_unknown = [](Axis axis) { return Coord(Axis{kUnknown + axis.id}); };
        solve(index_.coords[i].substitute(as_unknown, [](NodeId id) { return Coord::data_node(id); }),
              Coord(Axis{source_axes_[i]}));
    }

    void refuse_rows_at_data() const {
        const std::vector<AxisId>& source = source_axes_;
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (!graph_.axis(source[i]).is_row || !has_data(index_.coords[i])) continue;
            fail(ErrorCode::kUnsupported,
                 "gradient of index({}): rows of {} are read at a data coordinate; that has a gradient where the data "
                 "lies along none of its columns and the rest is as it is, so give the gathered rows as an input",
                 graph_.describe(index_.args[0]), graph_.axis(source[i]).label());
        }
    }

    std::int64_t extent(Axis axis) const {
        if (axis.id >= kPart) return parts_.at(axis.id);
        return graph_.axis(axis.id >= kUnknown ? axis.id - kUnknown : axis.id).extent;
    }

    bool bounds(const Coord& coord, std::int64_t* low, std::int64_t* high) const {
        return coord.bounds([&](Axis axis) { return extent(axis); }, low, high);
    }

    bool within(const Coord& coord, std::int64_t least, std::int64_t most) const {
        std::int64_t low = 0;
        std::int64_t high = 0;
        return bounds(coord, &low, &high) && low >= least && high <= most;
    }

    Coord quotient(const Coord& coord, std::int64_t divisor) const {
        return within(coord, 0, divisor - 1) ? Coord(0) : coord / divisor;
    }
    // Terms that are multiples of the divisor vanish, and so may as much of the constant.
    Coord remainder(const Coord& coord, std::int64_t divisor) const {
        std::vector<Term> terms;
        std::int64_t constant = 0;
        split(coord, 1, &terms, &constant);
        Coord rest(constant);
        for (const Term& term : terms) {
            if (term.weight % divisor != 0) rest = rest + term.unit * term.weight;
        }
        const std::int64_t whole = floor_div(constant, divisor) * divisor;
        for (const Coord& simpler : {rest, rest - Coord(whole)}) {
            if (within(simpler, 0, divisor - 1)) return simpler;
        }
        return rest % divisor;
    }

    // Of what is known to be a multiple of the divisor: of 2h + 1 both it and 2h are at h, of which that says more.
    Coord exact_quotient(const Coord& coord, std::int64_t divisor) const {
        std::vector<Term> terms;
        std::int64_t constant = 0;
        split(coord, 1, &terms, &constant);
        Coord sum(-floor_div(-constant, divisor) * divisor);
        for (const Term& term : terms) sum = sum + term.unit * term.weight;
        return quotient(sum, divisor);
    }

    bool is_open(Axis axis) const { return axis.id >= kUnknown && axis.id < kFree && !solved_.contains(axis.id); }

    bool is_open(const Coord& coord) const {
        const std::vector<Axis> axes = coord.axes();
        return std::any_of(axes.begin(), axes.end(), [&](Axis axis) { return is_open(axis); });
    }

    bool mentions(const Coord& coord, Axis axis) const {
        const std::vector<Axis> axes = known(coord).axes();
        return std::ranges::any_of(axes, [&](Axis a) { return a.id == axis.id; });
    }

    Coord new_part(std::int64_t extent, AxisId first) {
        const auto id = static_cast<AxisId>(first + static_cast<AxisId>(parts_.size()));
        parts_[id] = extent;
        return {Axis{id}};
    }

    void assign(AxisId unknown, const Coord& value) { solved_.emplace(unknown, value); }

    // With everything replaced that is solved by now.
    Coord known(const Coord& coord) const {
        return coord.substitute(
            [&](Axis axis) {
                const auto found = solved_.find(axis.id);
                return found == solved_.end() ? Coord(axis) : known(found->second);
            },
            [](NodeId id) { return Coord::data_node(id); });
    }

    // Rotations by half, reversals and exchanges of neighbours: their own inverse, and simplest left as they are.
    bool solve_involution(const Coord& coord, AxisId axis) {
        const std::vector<Axis> axes = coord.axes();
        const ColumnRange range = range_of(axis);
        if (has_data(coord) || axes.size() != 1 || axes[0].id != axis || range.high - range.low > kMostTried)
            return false;
        const auto read_by = [&](std::int64_t place) {
            return coord.evaluate([&](Axis) { return place; }, [](NodeId) { return std::int64_t{0}; });
        };
        for (std::int64_t i = range.low; i < range.high; ++i) {
            const std::int64_t there = read_by(i);
            if (there < range.low || there >= range.high || read_by(there) != i) return false;
        }
        assign(kUnknown + axis, coord);
        return true;
    }

    void require(const Coord& value, const Coord& low, const Coord& high) { conditions_.push_back({value, low, high}); }

    // expression = target, in which the target holds no open unknown of the expression.
    void solve(const Coord& expression, const Coord& target) {
        for (const NodeId data : known(expression).data_nodes()) decide_nothing_of(graph_.node(data).axes);
        std::vector<Term> terms;
        std::int64_t constant = 0;
        // Of (192 i + 384 p + q) / 384, where q and i are small, only p is left.
        split(known(expression).decided([&](Axis axis) { return extent(axis); }), 1, &terms, &constant);
        Coord settled(constant);
        std::vector<Term> open;
        for (const Term& term : terms) {
            if (is_open(term.unit)) {
                open.push_back(term);
            } else {
                settled = settled + term.unit * term.weight;
            }
        }
        if (open.empty()) return require(target, settled, settled);
        if (open.size() == 1) return solve_term(open[0], target - settled);
        solve_terms(open, target - settled);
    }

    // What data depends on is not decided by an equation with that data: it is summed over.
    void decide_nothing_of(const std::vector<AxisId>& axes) {
        for (const AxisId axis : axes) set_free(Axis{kUnknown + axis});
    }

    void set_free(Axis axis) {
        if (!is_open(axis)) return;
        const Coord part = new_part(extent(axis), kFree);
        if (axis.id < kPart) free_axis_of_[part.axis().id] = axis.id - kUnknown;
        assign(axis.id, part);
    }

    void solve_term(const Term& term, Coord target) {
        const std::int64_t weight = std::abs(term.weight);
        if (term.weight < 0) target = target * -1;
        if (weight != 1) {
            require(remainder(target, weight), 0, 0);
            target = exact_quotient(target, weight);
        }
        const Coord& unit = term.unit;
        switch (unit.kind()) {
            case Coord::Kind::kAxis: return solve_axis(unit.axis(), target);
            case Coord::Kind::kDiv:
                return solve(unit.left(), target * unit.constant() + new_part(unit.constant(), kPart));
            case Coord::Kind::kMod: return solve_remainder(unit, target);
            default: RJ_CHECK(false, "gradient: a term of kind {}", static_cast<int>(unit.kind()));
        }
    }

    void solve_axis(Axis axis, const Coord& target) {
        if (mentions(target, axis)) refuse();  // it would be solved by itself
        // A data coordinate outside an axis of the result reads nothing, so it needs no condition; a part is no axis.
        const bool itself = axis.id < kPart && target.is_axis(Axis{axis.id - kUnknown});
        if (!itself && (axis.id >= kPart || !has_data(target))) require(target, 0, extent(axis) - 1);
        assign(axis.id, target);
    }

    // unit.left() % m = target: the open part of the left side is known up to multiples of m, and is bounded.
    void solve_remainder(const Coord& unit, const Coord& target) {
        const std::int64_t m = unit.constant();
        require(target, 0, m - 1);
        std::vector<Term> terms;
        std::int64_t constant = 0;
        split(unit.left(), 1, &terms, &constant);
        Coord settled(constant);
        Coord open(0);
        for (const Term& term : terms) {
            Coord& part = is_open(term.unit) ? open : settled;
            part = part + term.unit * term.weight;
        }
        std::int64_t low = 0;
        std::int64_t high = 0;
        if (!bounds(open, &low, &high)) refuse();
        Coord value = remainder(target - settled - Coord(low), m) + low;
        if (const std::int64_t periods = (high - low) / m + 1; periods > 1)
            value = value + new_part(periods, kPart) * m;
        solve(open, value);
    }

    struct Digit {
        Coord unit;
        std::int64_t weight;
        std::int64_t low;
        std::int64_t count;
    };

    // Several open terms: the digits of a mixed radix, where each term counts what the smaller ones cannot reach; else
    // all but the longest are summed over.
    void solve_terms(const std::vector<Term>& terms, const Coord& target) {
        std::vector<Digit> digits;
        for (const Term& term : terms) {
            Digit digit{term.unit * (term.weight < 0 ? -1 : 1), std::abs(term.weight), 0, 0};
            std::int64_t high = 0;
            if (!bounds(digit.unit, &digit.low, &high)) refuse();
            digit.count = high - digit.low + 1;
            digits.push_back(std::move(digit));
        }
        std::stable_sort(digits.begin(), digits.end(),
                         [](const Digit& a, const Digit& b) { return a.weight > b.weight; });
        bool radix = true;
        Coord base = target;
        for (std::size_t i = 0; i < digits.size(); ++i) {
            base = base - Coord(digits[i].low * digits[i].weight);
            if (i == 0) continue;
            radix = radix && digits[i - 1].weight % digits[i].weight == 0 &&
                    digits[i].count <= digits[i - 1].weight / digits[i].weight;
        }
        if (!radix) {
            if (!part_windows(digits)) free_all_but_longest(digits);
            Coord all(0);
            for (const Term& term : terms) all = all + term.unit * term.weight;
            return solve(all, target);
        }
        if (digits.back().weight != 1) require(remainder(base, digits.back().weight), 0, 0);
        for (std::size_t i = 0; i < digits.size(); ++i) {
            Coord value = quotient(base, digits[i].weight);
            if (i > 0) value = remainder(value, digits[i - 1].weight / digits[i].weight);
            solve(digits[i].unit, value + digits[i].low);
        }
    }

    void free_all_but_longest(const std::vector<Digit>& digits) {
        const auto longest = std::ranges::max_element(digits, {}, &Digit::count);
        for (const Digit& digit : digits) {
            if (&digit == &*longest) continue;
            for (const Axis axis : digit.unit.axes()) set_free(axis);
        }
    }

    // Of windows that lie over each other, as 4 o + k of eight k, the place k within a step is known, and few windows
    // are summed over that have it: with k = 4 i + j one of o and i. False where no digit is such an axis.
    bool part_windows(const std::vector<Digit>& digits) {
        for (std::size_t i = 1; i < digits.size(); ++i) {
            const Digit& window = digits[i];
            const std::int64_t step = digits[i - 1].weight / window.weight;
            if (digits[i - 1].weight % window.weight != 0 || step == 1 || window.count <= step) continue;
            if (window.unit.kind() != Coord::Kind::kAxis) continue;
            const std::int64_t steps = ceil_div(window.count, step);
            const Coord whole = new_part(steps, kPart);
            const Coord place = whole * step + new_part(step, kPart);
            if (window.count % step != 0) require(place, 0, window.count - 1);
            assign(window.unit.axis().id, place);
            for (const Axis axis : steps <= digits[i - 1].count ? whole.axes() : digits[i - 1].unit.axes())
                set_free(axis);
            return true;
        }
        return false;
    }

    [[noreturn]] void refuse() const {
        std::vector<std::string> coords;
        for (const Coord& coord : index_.coords) {
            coords.push_back(coord.print([&](Axis axis) { return graph_.axis(axis.id).label(); },
                                         [&](NodeId id) { return graph_.describe(id); }));
        }
        fail(ErrorCode::kUnsupported,
             "gradient of index({}) at [{}]: the coordinates cannot be solved for the result's axes",
             graph_.describe(index_.args[0]), fmt::join(coords, ", "));
    }

    // The solution in the graph's axes.
    Preimage finished() {
        for (const AxisId axis : index_.axes) set_free(Axis{kUnknown + axis});
        for (const auto& [part, size] : std::map<AxisId, std::int64_t>(parts_)) {
            if (part < kFree) set_free(Axis{part});
        }
        Preimage result;
        std::map<AxisId, Coord> real;
        std::set<AxisId> used;
        for (const AxisId axis : index_.axes) {
            for (const Axis a : known(Coord(Axis{kUnknown + axis})).axes()) used.insert(a.id);
        }
        for (const auto& [part, size] : parts_) {
            if (part >= kFree && used.contains(part)) real.emplace(part, real_axis(part, size, &result));
        }
        const auto final_form = [&](const Coord& coord) { return in_the_graph(coord, real); };
        for (const AxisId axis : index_.axes) {
            result.coords.push_back(inside(final_form(Coord(Axis{kUnknown + axis})), graph_.axis(axis).extent));
        }
        for (const Bounded& condition : conditions_) {
            const Bounded final{final_form(condition.value), final_form(condition.low), final_form(condition.high)};
            const std::optional<bool> decided = decide(graph_, final);
            if (!decided) result.conditions.push_back(final);
            if (decided && !*decided) result.empty = true;
        }
        return result;
    }

    Coord real_axis(AxisId part, std::int64_t size, Preimage* result) {
        const std::vector<AxisId>& source = source_axes_;
        const auto own = free_axis_of_.find(part);
        AxisId axis = own == free_axis_of_.end() ? -1 : own->second;
        if (axis >= 0 && std::find(source.begin(), source.end(), axis) != source.end()) {
            if (graph_.axis(axis).is_row) refuse();
            axis = -1;
        }
        if (axis < 0) axis = new_column_axis(size);
        result->summed.push_back(axis);
        return {Axis{axis}};
    }

    AxisId new_column_axis(std::int64_t size) {
        for (int number = 1;; ++number) {
            const std::string name = fmt::format("part_{}", number);
            const auto& axes = graph_.axes();
            if (std::none_of(axes.begin(), axes.end(), [&](const AxisInfo& axis) { return axis.name == name; }))
                return graph_.add_column_axis(name, size);
        }
    }

    // Every unknown replaced; data along an axis of the result is read where that axis is.
    Coord in_the_graph(const Coord& coord, const std::map<AxisId, Coord>& real) {
        return known(coord).substitute([&](Axis axis) { return axis.id >= kFree ? real.at(axis.id) : Coord(axis); },
                                       [&](NodeId id) {
                                           std::vector<Coord> at;
                                           for (const AxisId axis : graph_.node(id).axes)
                                               at.push_back(in_the_graph(Coord(Axis{kUnknown + axis}), real));
                                           return Coord::data_node(graph_.add_index(id, std::move(at)));
                                       });
    }

    Coord inside(const Coord& coord, std::int64_t extent) const {
        if (has_data(coord) || extent == kRuntimeExtent || within(coord, 0, extent - 1)) return coord;
        return coord % extent;
    }

    GraphData& graph_;
    const Node index_;  // a copy: adding nodes moves the original
    const std::vector<AxisId> source_axes_;
    const Support support_;
    std::map<AxisId, Coord> solved_;         // unknowns and parts
    std::map<AxisId, std::int64_t> parts_;   // extents of parts and free axes
    std::map<AxisId, AxisId> free_axis_of_;  // the axis of the result that a free axis is
    std::vector<Bounded> conditions_;
};

}  // namespace

Preimage preimage_of(GraphData& graph, const Node& index, const Support& support) {
    return Solver(graph, index, support).run();
}

}  // namespace rowjit
