#include "compiler/emit/gpu_exponentials.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/dtype.h"

namespace rowjit {
namespace {

// Where values go: the maps, sums, slots and tensors that an exponential ends up in.
class Uses {
  public:
    explicit Uses(const Kernel& kernel) : kernel_(kernel) {
        each_inst(kernel, [&](const Inst& inst) {
            for (const ValueId operand : inst.operands) uses_[operand].push_back(&inst);
            if (inst.id >= 0) made_by_[inst.id] = &inst;
            if (inst.kind == InstKind::kKept) kept_[inst.index].push_back(inst.id);
        });
        for (const Stmt& stmt : kernel.body) {
            const auto* reduce = std::get_if<AllReduce>(&stmt.node);
            if (reduce == nullptr) continue;
            std::size_t result = 0;
            for (const int index : reduce->accumulators) {
                const Accumulator& accumulator = kernel.accumulators[static_cast<std::size_t>(index)];
                if (accumulator.monoid == Monoid::kSum) {
                    sums_[index] = reduce->results[result];
                    if (!accumulator.compensated) plain_sums_.insert(reduce->results[result]);
                }
                result += static_cast<std::size_t>(components(accumulator.monoid));
            }
        }
    }

    // Whether a relative error of the value stays one until it is lost in a rounding: the value, and the sums it goes
    // into, are only multiplied, divided, kept and stored. The logarithm of a sum makes an absolute error of it, which
    // is below what an f32 sum of so many terms loses by itself.
    bool only_scale(ValueId value) const {
        return all_of(value, [&](const Inst& use) {
            if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return only_scale(next); });
            if (use.op == Op::kLog) return plain_sums_.contains(value);
            return scales(use) && is_rounded(use.id);
        });
    }

  private:
    // Whether what is computed from the value is rounded to bf16 or f16 before anything could magnify its error, as the
    // difference of two probabilities does. What most columns have nothing of, as a class's own term, is no difference.
    bool is_rounded(ValueId value) const {
        return all_of(value, [&](const Inst& use) {
            if (use.kind != InstKind::kMap) return ends_narrow(use, [&](ValueId next) { return is_rounded(next); });
            const bool other_is_rare = use.op == Op::kAdd && is_rare(use.operands[use.operands[0] == value ? 1 : 0]);
            return (scales(use) || other_is_rare) && is_rounded(use.id);
        });
    }

    static bool scales(const Inst& use) { return use.op == Op::kMul || use.op == Op::kDiv || use.op == Op::kNeg; }

    bool is_rare(ValueId value) const {
        const auto made = made_by_.find(value);
        return made != made_by_.end() && made->second->kind == InstKind::kMap && made->second->op == Op::kSelect &&
               is_zero(made->second->operands[2]);
    }

    bool is_zero(ValueId value) const {
        const auto made = made_by_.find(value);
        return made != made_by_.end() && made->second->kind == InstKind::kConst && made->second->value == 0;
    }

    template <class Holds>
    bool all_of(ValueId value, const Holds& holds) const {
        const auto uses = uses_.find(value);
        return uses == uses_.end() ||
               std::all_of(uses->second.begin(), uses->second.end(), [&](const Inst* use) { return holds(*use); });
    }

    // Of what is no map: that it is narrow, or that `holds` of the values that it is read back as.
    template <class Holds>
    bool ends_narrow(const Inst& use, const Holds& holds) const {
        switch (use.kind) {
            case InstKind::kCast: return is_narrow(use.dtype);
            case InstKind::kStore: return is_narrow(kernel_.tensors[static_cast<std::size_t>(use.index)].dtype);
            case InstKind::kAccumulate: {
                const auto sum = sums_.find(use.index);
                return sum != sums_.end() && holds(sum->second);
            }
            case InstKind::kKeep: {
                const auto kept = kept_.find(use.index);
                return kept == kept_.end() || std::all_of(kept->second.begin(), kept->second.end(), holds);
            }
            default: return false;
        }
    }

    const Kernel& kernel_;
    std::map<ValueId, std::vector<const Inst*>> uses_;
    std::map<ValueId, const Inst*> made_by_;
    std::map<int, std::vector<ValueId>> kept_;  // by slot
    std::map<int, ValueId> sums_;               // by accumulator
    std::set<ValueId> plain_sums_;              // those of them in f32 alone
};

}  // namespace

// Half of the arithmetic of a softmax: bf16 rows of 4096 columns ran at 81 % of copy with the exact exponential (H200).
std::set<ValueId> narrow_exponentials(const Kernel& kernel) {
    std::set<ValueId> found;
    const auto opens = [](const Stmt& stmt) { return std::holds_alternative<OpenSteps>(stmt.node); };
    if (std::any_of(kernel.body.begin(), kernel.body.end(), opens)) return found;
    const Uses uses(kernel);
    each_inst(kernel, [&](const Inst& inst) {
        const bool exponential = inst.kind == InstKind::kMap && inst.op == Op::kExp && inst.dtype == Dtype::kF32;
        if (exponential && uses.only_scale(inst.id)) found.insert(inst.id);
    });
    return found;
}

}  // namespace rowjit
