#include "compiler/emit/spans.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <ranges>
#include <set>

namespace rowjit {
namespace {

// Each has a loop of its own: more would be longer than what they spare.
constexpr std::size_t kMostSpans = 4;

// slope · column + offset
struct Affine {
    std::int64_t slope = 0;
    double offset = 0;
};

// A condition that is `before` on columns below `threshold` and the opposite from there on.
struct Threshold {
    std::int64_t column = 0;
    bool before = false;
};

class Places {
  public:
    Places(const Kernel& kernel, const ColumnLoop& loop) : loop_(loop) {
        each_inst(kernel, [&](const Inst& inst) {
            if (inst.kind == InstKind::kConst) places_[inst.id] = {0, inst.value};
        });
        for (const Inst& inst : loop.body) {
            if (const auto place = place_of(inst)) places_[inst.id] = *place;
            if (const auto threshold = threshold_of(inst)) thresholds_[inst.id] = *threshold;
        }
    }

    // Of the conditions that something is chosen by.
    std::map<ValueId, Threshold> chosen_by() const {
        std::map<ValueId, Threshold> asked;
        for (const Inst& inst : loop_.body) {
            if (inst.kind != InstKind::kMap || inst.op != Op::kSelect) continue;
            const auto found = thresholds_.find(inst.operands[0]);
            if (found != thresholds_.end()) asked.insert(*found);
        }
        return asked;
    }

  private:
    std::optional<Affine> known(ValueId value) const {
        const auto found = places_.find(value);
        return found == places_.end() ? std::nullopt : std::optional(found->second);
    }

    std::optional<Affine> place_of(const Inst& inst) const {
        if (is_float(inst.dtype)) return std::nullopt;
        if (inst.kind == InstKind::kCoord && loop_.axes.size() == 1 && inst.axis == loop_.axes[0]) return Affine{1, 0};
        if (inst.kind == InstKind::kCast) return known(inst.operands[0]);
        if (inst.kind != InstKind::kMap || inst.op != Op::kAdd) return std::nullopt;
        const auto left = known(inst.operands[0]);
        const auto right = known(inst.operands[1]);
        if (!left || !right) return std::nullopt;
        return Affine{left->slope + right->slope, left->offset + right->offset};
    }

    std::optional<Threshold> threshold_of(const Inst& inst) const {
        const bool compares = inst.kind == InstKind::kMap &&
                              (inst.op == Op::kLt || inst.op == Op::kLe || inst.op == Op::kGt || inst.op == Op::kGe);
        const auto left = compares ? known(inst.operands[0]) : std::nullopt;
        const auto right = compares ? known(inst.operands[1]) : std::nullopt;
        if (!left || !right || std::abs(left->slope - right->slope) != 1) return std::nullopt;
        // column against what the sides differ by, the column's on the left.
        const bool swapped = left->slope < right->slope;
        const double limit = swapped ? left->offset - right->offset : right->offset - left->offset;
        const bool less = (inst.op == Op::kLt || inst.op == Op::kLe) != swapped;
        const bool or_equal = inst.op == Op::kLe || inst.op == Op::kGe;
        const bool behind = less == or_equal;  // ≤ and > change behind the limit, < and ≥ at it
        return Threshold{static_cast<std::int64_t>(limit) + (behind ? 1 : 0), less};
    }

    const ColumnLoop& loop_;
    std::map<ValueId, Affine> places_;
    std::map<ValueId, Threshold> thresholds_;
};

// The loop with these conditions known, without what nothing is left to need.
ColumnLoop known_loop(const ColumnLoop& loop, const std::map<ValueId, bool>& conditions) {
    ColumnLoop part = loop;
    std::map<ValueId, ValueId> chosen;  // what a choice stands for
    const auto stands_for = [&](ValueId value) {
        const auto found = chosen.find(value);
        return found == chosen.end() ? value : found->second;
    };
    for (Inst& inst : part.body) {
        for (ValueId& operand : inst.operands) operand = stands_for(operand);
        if (inst.kind != InstKind::kMap || inst.op != Op::kSelect) continue;
        const auto known = conditions.find(inst.operands[0]);
        if (known != conditions.end()) chosen[inst.id] = inst.operands[known->second ? 1 : 2];
    }
    std::set<ValueId> needed;
    std::vector<Inst> body;
    for (Inst& inst : std::views::reverse(part.body)) {
        if (inst.id >= 0 && !needed.contains(inst.id)) continue;
        const auto known = conditions.find(inst.id);
        if (known != conditions.end()) {
            inst = {.kind = InstKind::kConst, .id = inst.id, .dtype = Dtype::kBool};
            inst.value = known->second ? 1 : 0;
        }
        each_use(inst, [&](ValueId value) { needed.insert(value); });
        body.push_back(std::move(inst));
    }
    std::ranges::reverse(body);
    part.body = std::move(body);
    return part;
}

}  // namespace

std::vector<ColumnSpan> spans_of(const Kernel& kernel, const ColumnLoop& loop) {
    std::map<ValueId, Threshold> conditions = Places(kernel, loop).chosen_by();
    std::set<std::int64_t> ends;
    std::erase_if(conditions, [&](const auto& condition) {
        const std::int64_t column = condition.second.column;
        const bool within = column > 0 && column < loop.columns;
        if (within && column % loop.vector == 0) ends.insert(column);
        return within && column % loop.vector != 0;
    });
    if (conditions.empty() || ends.size() >= kMostSpans) return {};
    ends.insert(loop.columns);
    std::vector<ColumnSpan> spans;
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
        std::map<ValueId, bool> known;
        for (const auto& [value, threshold] : conditions) {
            if (threshold.column >= end || threshold.column <= begin)
                known[value] = (threshold.column >= end) == threshold.before;
        }
        spans.push_back({begin, end, known_loop(loop, known)});
        begin = end;
    }
    return spans;
}

}  // namespace rowjit
