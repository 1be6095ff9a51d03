// Products by a number of the row that a quotient by the same number undoes. The derivative of a softly capped
// c tanh(x / c) has them, d c (1 - tanh^2) / c: three instructions of a cross-entropy's 26, of which one is left.
#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "compiler/passes/precision_uses.h"
#include "compiler/passes/row_numbers.h"
#include "dsl/ops.h"

namespace rowjit::precision {
namespace {

// The products of a loop's body that are used once.
class SingleProducts {
  public:
    SingleProducts(std::vector<Inst>& body, const Uses& uses) {
        for (Inst& inst : body) {
            if (is_f32_map(inst, Op::kMul) && uses.count(inst.id) == 1) products_[inst.id] = &inst;
        }
    }

    // Makes of an operand that is such a product what it is without a factor. Whether it has that factor.
    bool take(ValueId* operand, ValueId factor) {
        const auto found = products_.find(*operand);
        if (found == products_.end()) return false;
        std::vector<ValueId>& factors = found->second->operands;
        for (const std::size_t k : {0, 1}) {
            if (factors[k] != factor) continue;
            taken_.insert(*operand);
            *operand = factors[1 - k];
            return true;
        }
        return take(&factors[0], factor) || take(&factors[1], factor);
    }

    // Of which nothing is left.
    const std::set<ValueId>& taken() const { return taken_; }

  private:
    std::map<ValueId, Inst*> products_;
    std::set<ValueId> taken_;
};

}  // namespace

void cancel_scales(Kernel* kernel, Uses& uses) {
    std::map<ValueId, ValueId> ones;
    change_loops(kernel, [&](ColumnLoop* loop, Block* before) {
        SingleProducts products(loop->body, uses);
        std::set<ValueId> inside;
        for (Inst& inst : loop->body) {
            inside.insert(inst.id);
            if (!is_f32_map(inst, Op::kDiv) || inside.contains(inst.operands[1])) continue;
            const ValueId scale = inst.operands[1];
            if (!uses.is_scaled_or_summed(inst.id) || !products.take(&inst.operands[0], scale)) continue;
            const auto [one, is_new] = ones.try_emplace(scale, kernel->value_count);
            if (is_new) add_map(before, kernel->value_count++, Op::kDiv, {scale, scale}).comment = "1, or NaN";
            inst.op = Op::kMul;
            inst.operands[1] = one->second;
        }
        std::erase_if(loop->body, [&](const Inst& inst) { return products.taken().contains(inst.id); });
    });
}

}  // namespace rowjit::precision
