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
            if (is_in_lanes(inst)) in_lanes_.insert(inst.id);
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
        if (inst.kind == InstKind::kMap && has_packed(inst.op, inst.dtype, target_) && has_words(inst) &&
            (in_words || stored_.contains(inst.id) || !is_exact_on_narrow(inst.op)))
            return Packing::kComputed;
        const bool rounds =
            inst.kind == InstKind::kCast || (inst.kind == InstKind::kMap && !is_exact_on_narrow(inst.op));
        const bool in_pairs = rounds && target_.packed_bf16 && lanes_.contains(inst.id);
        return in_words || in_pairs ? Packing::kRounded : Packing::kNone;
    }

    // Whether an operand comes in words, or has to be rounded. Two operands that are loaded lane by lane cost as much
    // to pack as their product on words saves.
    bool has_words(const Inst& inst) const {
        return std::any_of(inst.operands.begin(), inst.operands.end(), [&](ValueId operand) {
            return dtype(operand) == inst.dtype && !in_lanes_.contains(operand);
        });
    }

    // Narrow numbers that lanes have as they are: loaded one by one, constants, and what does not round of such.
    bool is_in_lanes(const Inst& inst) const {
        if (inst.kind == InstKind::kLoad)
            return inst.access.kind == Access::Kind::kGather || inst.access.kind == Access::Kind::kUniform;
        if (inst.kind == InstKind::kMap) return is_exact_on_narrow(inst.op) && !has_words(inst);
        return inst.kind == InstKind::kConst || inst.kind == InstKind::kScalar || inst.kind == InstKind::kExtent;
    }

    // Values that are words without being made to: of vectors, of runs that a vector is loaded of, and what is the same
    // for all lanes.
    static bool lies_in_words(const Inst& inst) {
        const bool whole = inst.access.kind != Access::Kind::kGather || inst.access.run > 0;
        const bool loads = inst.kind == InstKind::kLoad && whole;
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
    std::set<ValueId> in_lanes_;
    std::set<ValueId> words_;   // wanted on words,
    std::set<ValueId> stored_;  // to be stored or kept,
    std::set<ValueId> lanes_;   // and lane by lane
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
            if (loop != nullptr) Packer(kernel, *loop, target).run();
        }
    }
    return kernel;
}

}  // namespace rowjit
