// Which bf16 and f16 values two lanes share a word of. In f32 a product of two loaded bf16 numbers takes two
// instructions to widen them, one to multiply, two to round; on words it takes half of one. A sum, a difference or a
// product is the same bits either way: f32 has more than twice the bits of a bf16 or an f16 and two more, so that
// rounding to f32 first changes nothing (Figueroa, "When is double rounding innocuous?", 1995). Nor does it where f32
// runs out of exponents: a product of two bf16 has 16 bits, and one of which f32 loses any is below 2^-134, which is 0
// in bf16. On an H200 all 2^32 pairs of operands give the same bits, in each operation and both formats.
//
// Nothing is moved: a value that is needed lane by lane and on words is there both ways.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/dtype.h"
#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

// AMD's instructions for two f16 ignore a NaN in a minimum and a maximum, and there are none for two bf16.
bool has_packed(Op op, Dtype dtype, const Target& target) {
    if (info(op).packed.empty() || !is_narrow(dtype)) return false;
    if (target.packed_bf16) return true;
    return dtype == Dtype::kF16 && op != Op::kMin && op != Op::kMax;
}

// What a loop's values are read as, from its end to its beginning: every use of a value stands after it.
class Packer {
  public:
    Packer(const Kernel& kernel, ColumnLoop& loop, const Target& target)
        : kernel_(kernel), loop_(loop), target_(target) {
        for (const Inst& inst : loop.body) {
            if (inst.id >= 0) dtypes_[inst.id] = inst.dtype;
        }
    }

    void run() {
        if (loop_.vector % 2 != 0) return;
        for (std::size_t i = loop_.body.size(); i-- > 0;) {
            loop_.body[i].packing = packing(loop_.body[i]);
            note_uses(loop_.body[i]);
        }
    }

  private:
    // A map that rounds costs three instructions a lane in f32, and on words half of one, and one more for each lane
    // that is taken out again. One that does not round costs half of what it does in f32, if what it gives goes on in
    // words. Two lanes that are rounded at once share an instruction.
    Packing packing(const Inst& inst) const {
        if (!is_narrow(inst.dtype) || lies_in_words(inst)) return Packing::kNone;
        const bool in_words = words_.contains(inst.id);
        if (inst.kind == InstKind::kMap && has_packed(inst.op, inst.dtype, target_) &&
            (in_words || stored_.contains(inst.id) || !is_exact_on_narrow(inst.op)))
            return Packing::kComputed;
        const bool rounds =
            inst.kind == InstKind::kCast || (inst.kind == InstKind::kMap && !is_exact_on_narrow(inst.op));
        const bool in_pairs = rounds && target_.packed_bf16 && lanes_.contains(inst.id);
        return in_words || in_pairs ? Packing::kRounded : Packing::kNone;
    }

    // Values that are words without being made to: of vectors, and what is the same for all lanes.
    static bool lies_in_words(const Inst& inst) {
        const bool loads = inst.kind == InstKind::kLoad && inst.access.kind != Access::Kind::kGather;
        return loads || inst.kind == InstKind::kKept || inst.kind == InstKind::kConst ||
               inst.kind == InstKind::kScalar || inst.kind == InstKind::kExtent;
    }

    void note_uses(const Inst& inst) {
        for (const ValueId operand : inst.operands) {
            if (inst.packing == Packing::kComputed && dtype(operand) == inst.dtype) {
                words_.insert(operand);
            } else if (leaves_as_it_is(inst)) {
                stored_.insert(operand);
            } else {
                lanes_.insert(operand);
            }
        }
        for (const Coord& coord : inst.coords) {
            const std::vector<std::int32_t> data = coord.data_nodes();
            lanes_.insert(data.begin(), data.end());
        }
    }

    // Into a vector of its own dtype.
    bool leaves_as_it_is(const Inst& inst) const {
        if (inst.kind == InstKind::kKeep)
            return kernel_.slots[static_cast<std::size_t>(inst.index)].dtype == dtype(inst.operands[0]);
        return inst.kind == InstKind::kStore && !inst.accumulate && inst.access.kind == Access::Kind::kVector &&
               inst.dtype == dtype(inst.operands[0]);
    }

    // Of what is made in the loop: other values are none of its words' business.
    Dtype dtype(ValueId value) const {
        const auto found = dtypes_.find(value);
        return found == dtypes_.end() ? Dtype::kF32 : found->second;
    }

    const Kernel& kernel_;
    ColumnLoop& loop_;
    const Target& target_;
    std::map<ValueId, Dtype> dtypes_;
    std::set<ValueId> words_;   // wanted on words,
    std::set<ValueId> stored_;  // to be stored or kept,
    std::set<ValueId> lanes_;   // and lane by lane
};

// Conditions that all lanes of each vector share: a head's half is a whole number of vectors. As with accesses, columns
// are few enough to look at each.
class Conditions {
  public:
    Conditions(const Kernel& kernel, ColumnLoop& loop)
        : kernel_(kernel),
          loop_(loop),
          has_value_(static_cast<std::size_t>(kernel.value_count)),
          values_(static_cast<std::size_t>(kernel.value_count)) {
        each_inst(kernel, [&](const Inst& inst) {
            if (inst.kind != InstKind::kConst) return;
            has_value_[static_cast<std::size_t>(inst.id)] = true;
            value_of(inst.id) = inst.value;
        });
        for (Inst& inst : loop.body) {
            if (!is_known(inst)) continue;
            has_value_[static_cast<std::size_t>(inst.id)] = true;
            known_.push_back(&inst);
            if (inst.kind == InstKind::kMap && inst.dtype == Dtype::kBool) alike_.push_back({&inst});
        }
    }

    void run() {
        if (loop_.vector == 1) return;
        for (std::int64_t column = 0; column < loop_.columns && !alike_.empty(); ++column) {
            for (const Inst* inst : known_) value_of(inst->id) = computed(*inst, column);
            const bool is_first = column % loop_.vector == 0;
            for (Shared& shared : alike_) {
                if (is_first) shared.value = value_of(shared.inst->id);
            }
            std::erase_if(alike_, [&](const Shared& shared) { return value_of(shared.inst->id) != shared.value; });
        }
        for (const Shared& shared : alike_) shared.inst->alike = true;
    }

  private:
    struct Shared {
        Inst* inst = nullptr;
        double value = 0;  // of the vector's first lane
    };

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
        if (inst.kind == InstKind::kCoord) return static_cast<double>(coordinate(inst.axis, column));
        const auto operand = [&](std::size_t i) { return i < inst.operands.size() ? value_of(inst.operands[i]) : 0.0; };
        if (inst.kind == InstKind::kCast) return round_to(inst.dtype, operand(0));
        return round_to(inst.dtype, info(inst.op).reference(operand(0), operand(1), operand(2)));
    }

    std::int64_t coordinate(AxisId axis, std::int64_t column) const {
        for (std::size_t i = loop_.axes.size(); i-- > 0;) {
            const std::int64_t extent = kernel_.axis(loop_.axes[i]).extent;
            if (loop_.axes[i] == axis) return column % extent;
            column /= extent;
        }
        return 0;
    }

    const Kernel& kernel_;
    ColumnLoop& loop_;
    std::vector<bool> has_value_;  // by value: known at every column,
    std::vector<double> values_;   // and what it is at this one
    std::vector<const Inst*> known_;
    std::vector<Shared> alike_;
};

}  // namespace

bool is_exact_on_narrow(Op op) {
    return op == Op::kNeg || op == Op::kAbs || op == Op::kMin || op == Op::kMax || op == Op::kSelect ||
           op == Op::kFloor || op == Op::kRound || op == Op::kDetach;
}

Kernel pack_lanes(Kernel kernel, const Target& target) {
    if (!target.is_gpu()) return kernel;
    for (Block* block : {&kernel.before, &kernel.body, &kernel.after}) {
        for (Stmt& stmt : *block) {
            auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr) continue;
            Packer(kernel, *loop, target).run();
            Conditions(kernel, *loop).run();
        }
    }
    return kernel;
}

}  // namespace rowjit
