// The greatest, or the least, of what a constant above 0 scales or divides is the greatest scaled: rounding keeps the
// order, so the bits are the same, and a row is scaled once where each of its elements was. What lies in memory as
// bf16 or f16 is then compared as it lies there, two at a time. A distillation's rows at a temperature of 2 took 6.5
// instructions a pair of columns for both maxima, and take 1.2.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/passes/passes.h"
#include "compiler/passes/row_numbers.h"

namespace rowjit {
namespace {

class Extrema {
  public:
    explicit Extrema(Kernel* kernel) : kernel_(kernel) {
        each_inst(*kernel, [&](const Inst& inst) {
            if (inst.kind == InstKind::kConst) constants_[inst.id] = inst.value;
        });
    }

    void scale() {
        std::vector<Block> behind(kernel_->body.size());  // each statement
        for (std::size_t at = 0; at < behind.size(); ++at) {
            auto* reduce = std::get_if<AllReduce>(&kernel_->body[at].node);
            std::size_t result = 0;
            for (std::size_t i = 0; reduce != nullptr && i < reduce->accumulators.size(); ++i) {
                const int index = reduce->accumulators[i];
                const Accumulator& accumulator = kernel_->accumulators[static_cast<std::size_t>(index)];
                const bool is_extremum = accumulator.monoid == Monoid::kMax || accumulator.monoid == Monoid::kMin;
                if (is_extremum && accumulator.dtype == Dtype::kF32)
                    scale(index, &reduce->results[result], &behind[at]);
                result += static_cast<std::size_t>(accumulator.components());
            }
        }
        Block body;
        for (std::size_t at = 0; at < behind.size(); ++at) {
            body.push_back(std::move(kernel_->body[at]));
            std::move(behind[at].begin(), behind[at].end(), std::back_inserter(body));
        }
        kernel_->body = std::move(body);
        erase_unused();
    }

  private:
    // x c, or x / c as plan/inverse writes it: x (1 / c) and what that lacks, rounded once.
    struct Scaled {
        ValueId element = -1;
        double factor = 0;
        double rest = 0;
    };

    void scale(int accumulator, ValueId* result, Block* behind) {
        std::vector<Inst*> accumulates;
        std::optional<Scaled> scaled;
        std::vector<ValueId> elements;
        for (Stmt& stmt : kernel_->body) {
            auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            for (std::size_t i = 0; loop != nullptr && i < loop->body.size(); ++i) {
                Inst& inst = loop->body[i];
                if (inst.kind != InstKind::kAccumulate || inst.index != accumulator) continue;
                const auto found = scaled_element(*loop, inst.operands[0]);
                if (!found || (scaled && (found->factor != scaled->factor || found->rest != scaled->rest))) return;
                scaled = found;
                accumulates.push_back(&inst);
                elements.push_back(found->element);
            }
        }
        if (!scaled) return;
        for (std::size_t i = 0; i < elements.size(); ++i) accumulates[i]->operands[0] = elements[i];
        const ValueId product = std::exchange(*result, kernel_->value_count++);
        const ValueId factor = add_constant(kernel_, behind, scaled->factor);
        if (scaled->rest == 0) return add_once(behind, product, Op::kMul, {*result, factor});
        const ValueId rest = add_constant(kernel_, behind, scaled->rest);
        const ValueId low = kernel_->value_count++;
        add_once(behind, low, Op::kMul, {*result, rest});
        add_once(behind, product, Op::kFma, {*result, factor, low});
    }

    static void add_once(Block* behind, ValueId id, Op op, std::vector<ValueId> operands) {
        add_map(behind, id, op, std::move(operands)).comment = "once a row";
    }

    std::optional<Scaled> scaled_element(const ColumnLoop& loop, ValueId value) const {
        const Inst* scaled = f32_map(loop, value);
        if (scaled == nullptr) return std::nullopt;
        if (scaled->op == Op::kMul) return product(*scaled);
        const Inst* low = scaled->op == Op::kFma ? f32_map(loop, scaled->operands[2]) : nullptr;
        if (low == nullptr || low->op != Op::kMul) return std::nullopt;
        auto high = product(*scaled);
        const auto rest = product(*low, false);
        const double part = high && rest ? std::fabs(rest->factor / high->factor) : 1;
        if (part > std::numeric_limits<float>::epsilon() || high->element != rest->element) return std::nullopt;
        high->rest = rest->factor;
        return high;
    }

    static const Inst* f32_map(const ColumnLoop& loop, ValueId value) {
        const auto found = std::ranges::find(loop.body, value, &Inst::id);
        const bool is = found != loop.body.end() && found->kind == InstKind::kMap && found->dtype == Dtype::kF32;
        return is ? &*found : nullptr;
    }

    // Of the first two operands; of a constant above 0 unless a part of one may be below.
    std::optional<Scaled> product(const Inst& inst, bool above = true) const {
        for (const std::size_t element : {0, 1}) {
            const auto factor = constants_.find(inst.operands[1 - element]);
            if (factor == constants_.end() || constants_.contains(inst.operands[element])) continue;
            if (std::isfinite(factor->second) && (factor->second > 0 || !above))
                return Scaled{inst.operands[element], factor->second};
        }
        return std::nullopt;
    }

    // What only the extrema read, products first made last.
    void erase_unused() {
        std::map<ValueId, int> uses;
        for (const Stmt& stmt : kernel_->body) each_use(stmt, [&](ValueId value) { ++uses[value]; });
        for (Stmt& stmt : kernel_->body) {
            auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            for (std::size_t i = loop == nullptr ? 0 : loop->body.size(); i-- > 0;) {
                const Inst& inst = loop->body[i];
                if (inst.kind != InstKind::kMap || (inst.op != Op::kMul && inst.op != Op::kFma)) continue;
                if (uses[inst.id] > 0) continue;
                for (const ValueId operand : inst.operands) --uses[operand];
                loop->body.erase(loop->body.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }

    Kernel* kernel_;
    std::map<ValueId, double> constants_;
};

}  // namespace

Kernel scale_extrema(Kernel kernel, const Target& /*target*/) {
    Extrema(&kernel).scale();
    return kernel;
}

}  // namespace rowjit
