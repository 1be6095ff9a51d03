// Conditions of a column's place: whether it is in the first half of its head, in a group, before a width. Lanes of a
// vector mostly share theirs, and then one comparison serves all of them, and two packed lanes are selected at once.
// Kernels that pack nothing keep theirs, one a lane: arithmetic is not what they wait for, and ptxas, with a comparison
// less, moved loads of a hyper_post's backward behind its sums (H200: 0.128 ms in place of 0.119). But loads of which
// such a condition chooses one, as a rotary embedding's of the table of one of three position streams, are marked in
// all kernels: one of them is made, at an address that is chosen.
//
// Neighbouring columns may be made of the same, as the gradients of a gate and its value that lie side by side: each is
// computed of both, and chosen by its place. What both lanes of a pair have alike, functions among it, is computed once
// for them, and a condition that holds in the same lanes of every vector is known to the compiler that unrolls them.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "base/dtype.h"
#include "compiler/passes/passes.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

// Conditions of the loop's own coordinates. As with accesses, columns are few enough to look at each.
class Conditions {
  public:
    Conditions(Kernel& kernel, ColumnLoop& loop)
        : kernel_(kernel),
          loop_(loop),
          has_value_(static_cast<std::size_t>(kernel.value_count)),
          values_(static_cast<std::size_t>(kernel.value_count)) {
        each_inst(kernel, [&](const Inst& inst) {
            if (inst.kind != InstKind::kConst) return;
            has_value_[static_cast<std::size_t>(inst.id)] = true;
            value_of(inst.id) = inst.value;
        });
        for (std::size_t i = 0; i < loop.body.size(); ++i) {
            const Inst& inst = loop.body[i];
            if (!is_known(inst)) continue;
            has_value_[static_cast<std::size_t>(inst.id)] = true;
            known_.push_back(i);
            if (inst.kind == InstKind::kMap && inst.dtype == Dtype::kBool) alike_.push_back({i});
        }
    }

    // Marks those that all lanes of each vector share, a head's half being a whole number of vectors, or only what they
    // choose of loads; and `by_lane` those that the same lanes of all vectors do.
    void run(bool only_loads, bool by_lane) {
        for (Shared& shared : alike_) {
            shared.bounds.resize(loop_.axes.size());
            if (by_lane) patterns_.push_back({.at = shared.at});
        }
        for (std::int64_t column = 0; column < loop_.columns && !(alike_.empty() && patterns_.empty()); ++column) {
            for (const std::size_t at : known_) value_of(loop_.body[at].id) = computed(loop_.body[at], column);
            const bool is_first = column % loop_.vector == 0;
            for (Shared& shared : alike_) note(shared, column, is_first);
            for (Pattern& pattern : patterns_) note(pattern, column);
            std::erase_if(alike_, [](const Shared& shared) { return shared.differs; });
            std::erase_if(patterns_, [](const Pattern& pattern) { return pattern.differs; });
        }
        for (const Pattern& pattern : patterns_) loop_.body[pattern.at].in_lanes = pattern.lanes;
        for (const Shared& shared : alike_) conditions_.insert(loop_.body[shared.at].id);
        choose_loads();
        if (only_loads) return;
        for (const Shared& shared : alike_) loop_.body[shared.at].alike = true;
        if (!alike_.empty()) bound();
    }

  private:
    static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

    // What is known of a condition along one axis: where it is the same all along the others, and changes once.
    struct Bound {
        bool at_first = false;                // what it is at coordinate 0
        std::int64_t most_same = 0;           // the largest coordinate where it is the same,
        std::int64_t least_other = kNowhere;  // and the smallest where it is not
    };
    struct Shared {
        std::size_t at = 0;  // in the body
        bool value = false;  // of the vector's first lane
        bool differs = false;
        std::vector<Bound> bounds = {};  // by axis of the loop
    };

    // In which lanes of the first vector a condition holds.
    struct Pattern {
        std::size_t at = 0;  // in the body
        std::uint64_t lanes = 0;
        bool differs = false;  // in another vector
    };

    void note(Pattern& pattern, std::int64_t column) {
        const bool value = value_of(loop_.body[pattern.at].id) != 0;
        const auto lane = static_cast<int>(column % loop_.vector);
        if (column < loop_.vector) pattern.lanes |= std::uint64_t{value} << lane;
        pattern.differs = value != ((pattern.lanes >> lane & 1) != 0);
    }

    void note(Shared& shared, std::int64_t column, bool is_first) {
        const bool value = value_of(loop_.body[shared.at].id) != 0;
        if (is_first) shared.value = value;
        shared.differs = value != shared.value;
        for (std::size_t i = 0; i < loop_.axes.size(); ++i) {
            Bound& bound = shared.bounds[i];
            const std::int64_t coordinate = coordinate_of(loop_.axes[i], column);
            if (column == 0) bound.at_first = value;
            if (value == bound.at_first) {
                bound.most_same = std::max(bound.most_same, coordinate);
            } else {
                bound.least_other = std::min(bound.least_other, coordinate);
            }
        }
    }

    void choose_loads() {
        std::map<ValueId, int> uses;
        for (const Inst& inst : loop_.body) each_use(inst, [&](ValueId value) { ++uses[value]; });
        std::map<ValueId, const Inst*> choices;  // loads and what chooses among some
        for (Inst& inst : loop_.body) {
            if (takes_a_vector(inst)) choices[inst.id] = &inst;
            if (inst.kind != InstKind::kMap || inst.op != Op::kSelect || !conditions_.contains(inst.operands[0]))
                continue;
            const auto a = choices.find(inst.operands[1]);
            const auto b = choices.find(inst.operands[2]);
            if (a == choices.end() || b == choices.end() || a == b || a->second->dtype != b->second->dtype) continue;
            if (uses[inst.operands[1]] > 1 || uses[inst.operands[2]] > 1) continue;
            inst.chooses = true;
            choices[inst.id] = &inst;
        }
    }

    // Of a vector in its order, wherever it lies.
    static bool takes_a_vector(const Inst& load) {
        return load.kind == InstKind::kLoad && load.access.kind == Access::Kind::kVector && load.access.anchor == 0 &&
               load.access.lanes.empty() && load.stage_offset_bytes < 0 && load.held < 0 && load.turn == 0 &&
               std::all_of(
                   load.coords.begin(), load.coords.end(),
                   [](const Coord& coord) { return coord.data_nodes().empty(); });
    }

    // One that every column answers alike is not asked, and one that a coordinate's bound decides is asked so, however
    // the graph came to it: a partner's partner found by quotient and remainder took a rotary embedding's backward 34
    // registers, two more than full occupancy leaves.
    void bound() {
        std::vector<Inst> body;
        for (std::size_t i = 0; i < loop_.body.size(); ++i) {
            Inst inst = loop_.body[i];
            const auto shared =
                std::find_if(alike_.begin(), alike_.end(), [&](const Shared& one) { return one.at == i; });
            if (shared != alike_.end()) compare(*shared, &inst, &body);
            body.push_back(std::move(inst));
        }
        loop_.body = std::move(body);
        drop_unused(&loop_, [](const Inst& inst) {
            return inst.kind == InstKind::kMap || inst.kind == InstKind::kCast || inst.kind == InstKind::kCoord ||
                   inst.kind == InstKind::kConst;
        });
    }

    void compare(const Shared& shared, Inst* condition, std::vector<Inst>* body) {
        if (shared.bounds[0].least_other == kNowhere) {
            condition->kind = InstKind::kConst;
            condition->value = shared.bounds[0].at_first ? 1 : 0;
            condition->operands.clear();
            condition->alike = false;
            return;
        }
        const auto is_coordinate = [&](ValueId operand) {
            return std::any_of(body->begin(), body->end(),
                               [&](const Inst& inst) { return inst.id == operand && inst.kind == InstKind::kCoord; });
        };
        if (std::any_of(condition->operands.begin(), condition->operands.end(), is_coordinate)) return;
        for (std::size_t i = 0; i < loop_.axes.size(); ++i) {
            const Bound& bound = shared.bounds[i];
            const std::int64_t extent = kernel_.axis(loop_.axes[i]).extent;
            if (bound.most_same >= bound.least_other || bound.least_other >= extent) continue;
            Inst coordinate{.kind = InstKind::kCoord, .id = kernel_.value_count++, .dtype = Dtype::kI32};
            coordinate.axis = loop_.axes[i];
            coordinate.label = condition->label + "_at";
            coordinate.comment = "coordinate along " + kernel_.axis(loop_.axes[i]).label();
            Inst limit{.kind = InstKind::kConst, .id = kernel_.value_count++, .dtype = Dtype::kI32};
            limit.value = static_cast<double>(bound.least_other);
            limit.label = condition->label + "_bound";
            condition->op = bound.at_first ? Op::kLt : Op::kGe;
            condition->operands = {coordinate.id, limit.id};
            body->push_back(std::move(coordinate));
            body->push_back(std::move(limit));
            return;
        }
    }

    // Made of constants and the loop's own coordinates, by arithmetic that doubles do as a kernel does.
    bool is_known(const Inst& inst) const {
        if (inst.kind == InstKind::kCoord) return !kernel_.axis(inst.axis).is_row;
        const bool computes = inst.kind == InstKind::kCast || (inst.kind == InstKind::kMap && is_plain(inst.op));
        return computes && std::all_of(inst.operands.begin(), inst.operands.end(),
                                       [&](ValueId operand) { return has_value_[static_cast<std::size_t>(operand)]; });
    }

    static bool is_plain(Op op) {
        const OpTypes types = info(op).types;
        return is_exact_on_narrow(op) || op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kFloorDiv ||
               types == OpTypes::kCompare || types == OpTypes::kLogic;
    }

    double& value_of(ValueId value) { return values_[static_cast<std::size_t>(value)]; }

    double computed(const Inst& inst, std::int64_t column) {
        if (inst.kind == InstKind::kCoord) return static_cast<double>(coordinate_of(inst.axis, column));
        const auto operand = [&](std::size_t i) { return i < inst.operands.size() ? value_of(inst.operands[i]) : 0.0; };
        if (inst.kind == InstKind::kCast) return round_to(inst.dtype, operand(0));
        return round_to(inst.dtype, info(inst.op).reference(operand(0), operand(1), operand(2)));
    }

    std::int64_t coordinate_of(AxisId axis, std::int64_t column) const {
        for (std::size_t i = loop_.axes.size(); i-- > 0;) {
            const std::int64_t extent = kernel_.axis(loop_.axes[i]).extent;
            if (loop_.axes[i] == axis) return column % extent;
            column /= extent;
        }
        return 0;
    }

    Kernel& kernel_;
    ColumnLoop& loop_;
    std::vector<bool> has_value_;  // by value: known at every column,
    std::vector<double> values_;   // and what it is at this one
    std::vector<std::size_t> known_;
    std::vector<Shared> alike_;
    std::set<ValueId> conditions_;  // those of them
    std::vector<Pattern> patterns_;
};

// Whether both lanes of each pair take the same element of a vector.
bool loads_pairs(const Inst& load) {
    const std::vector<int>& lanes = load.access.lanes;
    if (lanes.empty() || lanes.size() % 2 != 0) return false;
    for (std::size_t l = 0; l < lanes.size(); l += 2) {
        if (lanes[l] != lanes[l + 1]) return false;
    }
    return true;
}

// Marks what both lanes of a pair have alike; whether that is more than is computed at once.
bool mark_pairs(ColumnLoop& loop) {
    std::set<ValueId> here;  // lane by lane
    std::set<ValueId> paired;
    bool any = false;
    for (Inst& inst : loop.body) {
        if (inst.id < 0) continue;
        const bool is_uniform = inst.kind == InstKind::kConst || inst.kind == InstKind::kScalar ||
                                inst.kind == InstKind::kExtent ||
                                (inst.kind == InstKind::kLoad && inst.access.kind == Access::Kind::kUniform);
        if (!is_uniform) here.insert(inst.id);
        const bool computes = (inst.kind == InstKind::kMap && inst.op != Op::kUniform) ||
                              (inst.kind == InstKind::kCast && !is_storage(inst.dtype));
        const auto is_alike = [&](ValueId id) { return paired.contains(id) || !here.contains(id); };
        const bool of_pairs = computes && std::ranges::all_of(inst.operands, is_alike) &&
                              std::ranges::any_of(inst.operands, [&](ValueId id) { return paired.contains(id); });
        inst.paired = of_pairs || (inst.kind == InstKind::kLoad && loads_pairs(inst));
        if (inst.paired) paired.insert(inst.id);
        any = any || (of_pairs && inst.kind == InstKind::kMap && is_special(inst.op));
    }
    if (!any) {
        for (Inst& inst : loop.body) inst.paired = false;
    }
    return any;
}

bool packs_lanes(const Kernel& kernel) {
    bool packs = false;
    each_inst(kernel, [&](const Inst& inst) { packs = packs || inst.packing != Packing::kNone; });
    return packs;
}

bool selects_loads(const ColumnLoop& loop) {
    std::set<ValueId> loads;
    for (const Inst& inst : loop.body) {
        if (inst.kind == InstKind::kLoad) loads.insert(inst.id);
        if (inst.kind == InstKind::kMap && inst.op == Op::kSelect && loads.contains(inst.operands[1]) &&
            loads.contains(inst.operands[2]))
            return true;
    }
    return false;
}

}  // namespace

Kernel share_conditions(Kernel kernel, const Target& target) {
    if (!target.is_gpu()) return kernel;
    const bool packs = packs_lanes(kernel);
    for (Block* block : {&kernel.before, &kernel.body, &kernel.after}) {
        for (Stmt& stmt : *block) {
            auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr || loop->vector == 1 || loop->is_peeled()) continue;
            const bool pairs = mark_pairs(*loop);
            if (packs || pairs || selects_loads(*loop)) Conditions(kernel, *loop).run(!packs, pairs);
        }
    }
    return kernel;
}

}  // namespace rowjit
