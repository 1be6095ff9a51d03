// Exponentials of a row's numbers less the greatest of them, each multiplied by one number of the row, as in softmax
// and in the gradient of a cross-entropy: k e^(x - m) is k' 2^(x c - m c + 24), c = log2 e. An element then takes a
// multiply-add, the instruction for 2^t and a product, where e^(x - m) alone took a difference, a product, the
// instruction and, since that flushes denormals, a square. On an H200 a cross-entropy with its gradient takes 1 to 3 %
// less for it (docs/experiments/gpu-losses.md).
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/passes/precision_uses.h"
#include "compiler/passes/row_numbers.h"

namespace rowjit::precision {
namespace {

constexpr double kLog2E = 1.44269504088896341;
// Powers are so much larger than e^(x - m), whose least is the least denormal of bf16 and f32, so that none that counts
// is flushed; a number of the row that is already small is not made smaller.
constexpr double kLift = 24;
constexpr double kLeastLifted = 0x1p-100;
// Past it the product with c is off by so much that 2^ of it is no more the factor that takes it back, or overflows.
// What is not the greatest there is less by 16 or more: of any base its power is as good as nothing.
constexpr double kMostScaled = 0x1p27;

class Powers {
  public:
    Powers(Kernel* kernel, Uses& uses) : kernel_(kernel), uses_(uses) {}

    void take() {
        change_loops(kernel_, [&](ColumnLoop* loop, Block* before) {
            take(loop);
            // Whole vectors and the ends of a row stand together, and are of the same numbers.
            std::move(numbers_.begin(), numbers_.end(), std::back_inserter(*before));
            numbers_.clear();
        });
    }

  private:
    struct Row {
        ValueId scale = -1;
        ValueId from = -1;
        ValueId factor = -1;
    };

    void take(ColumnLoop* loop) {
        std::map<ValueId, std::size_t> made;
        std::map<ValueId, std::vector<Inst*>> used;
        for (std::size_t i = 0; i < loop->body.size(); ++i) {
            Inst& inst = loop->body[i];
            if (inst.id >= 0) made[inst.id] = i;
            each_use(inst, [&](ValueId value) { used[value].push_back(&inst); });
        }
        for (Inst& power : loop->body) {
            if (!is_f32_map(power, Op::kExp) || !power.narrow || power.weighs) continue;
            const auto difference = made.find(power.operands[0]);
            if (difference == made.end() || used[power.operands[0]].size() != 1) continue;
            Inst& exponent = loop->body[difference->second];
            if (!is_f32_map(exponent, Op::kSub) || !uses_.is_below_greatest(exponent.id)) continue;
            const auto factor = factor_of(power.id, used[power.id], made);
            if (!factor) continue;
            const Row row = row_of(exponent.operands[1], *factor);
            exponent.op = Op::kFma;
            exponent.operands = {exponent.operands[0], row.scale, row.from};
            exponent.comment = "in powers of two, " + exponent.comment;
            power.of_two = true;
            for (Inst* product : used[power.id]) {
                for (std::size_t i = 0; i < 2; ++i) {
                    if (product->operands[i] == *factor) product->operands[i] = row.factor;
                }
            }
        }
    }

    // The number of the row that all uses multiply the power by.
    static std::optional<ValueId> factor_of(ValueId power, const std::vector<Inst*>& uses,
                                            const std::map<ValueId, std::size_t>& made) {
        std::optional<ValueId> factor;
        for (const Inst* use : uses) {
            if (!is_f32_map(*use, Op::kMul) && !is_f32_map(*use, Op::kFma)) return std::nullopt;
            if (use->op == Op::kFma && use->operands[2] == power) return std::nullopt;
            const ValueId other = use->operands[use->operands[0] == power ? 1 : 0];
            if (made.contains(other) || (factor && *factor != other)) return std::nullopt;
            factor = other;
        }
        return factor;
    }

    // Of m and k the numbers of which k e^(x - m) is `factor` 2^(x `scale` + `from`). What the roundings of `from` are
    // off by is in all powers of the row, and `factor` takes it back.
    Row row_of(ValueId greatest, ValueId factor) {
        const auto [known, is_new] = rows_.try_emplace({greatest, factor});
        if (!is_new) return known->second;
        const ValueId is_small = less_in_size(factor, kLeastLifted);
        const ValueId lift = map(Op::kSelect, {is_small, constant(0), constant(kLift)});
        const ValueId is_scaled = less_in_size(greatest, kMostScaled);
        Row& row = known->second;
        row.scale = map(Op::kSelect, {is_scaled, constant(kLog2E), constant(1)});
        row.from = map(Op::kSub, {lift, map(Op::kMul, {greatest, row.scale})});
        const ValueId lifted = map(Op::kFma, {greatest, row.scale, row.from});
        Inst& back = add(Op::kExp, {map(Op::kNeg, {lifted})});
        back.of_two = true;
        Inst& product = add(Op::kMul, {factor, back.id});
        product.comment = "of powers of two";
        row.factor = product.id;
        return row;
    }

    ValueId less_in_size(ValueId value, double bound) {
        const ValueId size = map(Op::kAbs, {value});
        return add(Op::kLt, {size, constant(bound)}, Dtype::kBool).id;
    }

    ValueId constant(double value) { return add_constant(kernel_, &numbers_, value); }

    ValueId map(Op op, std::vector<ValueId> operands) { return add(op, std::move(operands)).id; }

    Inst& add(Op op, std::vector<ValueId> operands, Dtype dtype = Dtype::kF32) {
        return add_map(&numbers_, kernel_->value_count++, op, std::move(operands), dtype);
    }

    Kernel* kernel_;
    Uses& uses_;
    Block numbers_;  // of the row, for the loop that is next
    std::map<std::pair<ValueId, ValueId>, Row> rows_;
};

}  // namespace

void take_powers(Kernel* kernel, Uses& uses) { Powers(kernel, uses).take(); }

}  // namespace rowjit::precision
