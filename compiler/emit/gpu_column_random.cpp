// Random numbers of a vector's lanes. Neighbours share the work of four; and one that is only compared with a number of
// the row, as a dropout's mask compares it, stays the word it was made of: a fraction is 24 bits of a word, so that
// which words pass is found once for all vectors, and a lane saves a shift, a conversion and a product.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"

namespace rowjit::gpu_emit {

// Which words pass what random numbers are compared with.
void ColumnEmitter::declare_fractions() {
    for (const Inst& inst : loop_.body) {
        const std::optional<std::size_t> random = compared_random(inst);
        if (!random) continue;
        const std::string limit = limit_of(inst, *random);
        const bool lies_beyond = asks_beyond(inst, *random);
        const auto [bound, is_new] = fractions_.try_emplace({limit, lies_beyond});
        if (!is_new) continue;
        bound->second = scope_.names().fresh("fractions");
        out_.line(fmt::format("const rj_fractions {} = rj_fractions_from({}, {});", bound->second, limit, lies_beyond));
    }
}

void ColumnEmitter::declare_uniforms() {
    for (const Inst& inst : loop_.body) {
        if (!shares_work(inst)) continue;
        uniforms_[&inst] = scope_.names().fresh(inst.label + "_lanes");
        out_.line(is_run(inst) ? fmt::format("rj_uniform_run<{}> {};", loop_.vector, uniforms_[&inst])
                               : fmt::format("rj_uniforms {};", uniforms_[&inst]));
    }
}

// A random number, or only its word.
void ColumnEmitter::lane_uniform(const Inst& inst) {
    const bool reads = !is_run(inst) || is_read(inst);
    const std::string asked =
        fmt::format("{}.{}({}, {}, {}{})", uniforms_.at(&inst), reads ? "at" : "ask", scope_.value(inst.operands[0]),
                    scope_.value(inst.operands[1]), scope_.value(inst.operands[2]), is_run(inst) ? ", l" : "");
    return reads ? scope_.define(inst, asked) : out_.line(asked + ";", inst.comment);
}

std::string ColumnEmitter::asked_of_word(const Inst& inst, std::size_t random) const {
    const std::string& bound = fractions_.at({limit_of(inst, random), asks_beyond(inst, random)});
    return fmt::format("{}.{}({}.words[l])", bound, asks_above(inst, random) ? "contain" : "lack",
                       uniforms_.at(made_here(inst.operands[random])));
}

// Whether all lanes have one seed and offset.
bool ColumnEmitter::shares_work(const Inst& inst) const {
    if (inst.kind != InstKind::kMap || inst.op != Op::kUniform || loop_.vector == 1) return false;
    return !inside_.values.contains(inst.operands[0]) && !inside_.values.contains(inst.operands[1]);
}

// Where an instruction compares a random number with a number of the row, as a dropout's mask does: which of its
// operands is the random one, of which it then asks the word.
std::optional<std::size_t> ColumnEmitter::compared_random(const Inst& inst) const {
    if (inst.kind != InstKind::kMap) return std::nullopt;
    if (inst.op != Op::kLt && inst.op != Op::kLe && inst.op != Op::kGt && inst.op != Op::kGe) return std::nullopt;
    for (const std::size_t random : {0, 1}) {
        const Inst* made = made_here(inst.operands[random]);
        const ValueId limit = inst.operands[1 - random];
        if (made == nullptr || !shares_work(*made) || !is_run(*made)) continue;
        if (gpu_value_type(scope_.dtype(limit)) != "float") continue;
        if (!inside_.values.contains(limit) || constant(limit) != nullptr) return random;
    }
    return std::nullopt;
}

std::string ColumnEmitter::limit_of(const Inst& inst, std::size_t random) const {
    const ValueId limit = inst.operands[1 - random];
    const Inst* number = constant(limit);
    return number != nullptr ? gpu_literal(number->dtype, number->value) : scope_.value(limit);
}

// Such a condition is that the fraction is at least the limit, or greater than it, or that it is not.
bool ColumnEmitter::asks_beyond(const Inst& inst, std::size_t random) {
    return random == 0 ? inst.op == Op::kGt || inst.op == Op::kLe : inst.op == Op::kLt || inst.op == Op::kGe;
}

bool ColumnEmitter::asks_above(const Inst& inst, std::size_t random) {
    const bool is_greater = inst.op == Op::kGt || inst.op == Op::kGe;
    return random == 0 ? is_greater : !is_greater;
}

// Whether the number itself is wanted, and not only such conditions of it.
bool ColumnEmitter::is_read(const Inst& uniform) const {
    return std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
        bool uses = false;
        each_use(inst, [&](ValueId value) { uses = uses || value == uniform.id; });
        return uses && !compared_random(inst);
    });
}

}  // namespace rowjit::gpu_emit
