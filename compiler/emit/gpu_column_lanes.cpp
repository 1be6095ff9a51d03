// What a column loop computes of its vectors, lane by lane: what stands before the lanes, each instruction of one, and
// what leaves them as a vector. Which lanes are computed two a word is gpu_column_words.cpp's, and what is random
// gpu_column_random.cpp's.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/passes/passes.h"

namespace rowjit::gpu_emit {

// What the lanes of a warp keep together they are offered together, those that have no vector too: its elements are
// gathered inside the guard, and stand before it.
bool ColumnEmitter::is_offer(const Inst& inst) const {
    return inst.kind == InstKind::kAccumulate && scope_.accumulator(inst).monoid == Monoid::kGreatest;
}

void ColumnEmitter::declare_offers() {
    for (const Inst& inst : loop_.body) {
        if (!is_offer(inst)) continue;
        const Accumulator& accumulator = scope_.accumulator(inst);
        arrays_[&inst] = lane_array(accumulator.label, accumulator.dtype);
        factors_[&inst] = lane_array(accumulator.label + "_places", Dtype::kI32);
    }
}

void ColumnEmitter::offer() {
    const std::string condition = has_vector();
    for (const Inst& inst : loop_.body) {
        if (!is_offer(inst)) continue;
        out_.line(fmt::format("{}.offer({}, {}, {});", scope_.state(inst.index), condition.empty() ? "true" : condition,
                              arrays_.at(&inst), factors_.at(&inst)));
    }
}

void ColumnEmitter::compute() {
    declare_lane_arrays();
    declare_uniforms();
    declare_sums_where();
    declare_permutations();
    take_kept();
    conditions();
    capped();
    const std::vector<std::string> matches = lane_matches();
    const std::string lanes = matches.empty() ? "" : scope_.names().fresh("lanes");
    if (!matches.empty()) {
        one_matches_ = scope_.names().fresh("one_matches");
        out_.open(fmt::format("const auto {} = [&](auto {})", lanes, one_matches_));
    }
    const std::vector<const Inst*> test = few_pass();
    if (!test.empty()) open_passing(test);
    by_pairs() ? pairs() : each_lane();
    if (!matches.empty()) {
        for (const Inst& inst : loop_.body) {
            if (adds_match(inst))
                out_.line(
                    fmt::format("if ({}) {}.add({});", one_matches_, scope_.state(inst.index), arrays_.at(&inst)));
        }
        out_.close(";");
        out_.line(fmt::format("{0} ? {1}(rj_constant<true>()) : {1}(rj_constant<false>());", fmt::join(matches, " || "),
                              lanes));
    }
    for (const Inst& inst : loop_.body) {
        if (matches.empty() || !adds_match(inst)) leave(inst);
    }
    if (!test.empty()) out_.close();
}

void ColumnEmitter::each_lane() {
    open_lanes();
    for (const Inst& inst : loop_.body) {
        if (!before_lanes_.contains(&inst)) lane_inst(inst);
    }
    close_lanes();
}

void ColumnEmitter::open_lanes() {
    if (loop_.vector > 1) {
        out_.line("#pragma unroll");
        out_.open(fmt::format("for (int l = 0; l < {}; ++l)", loop_.vector));
    }
    lane_divisors_.clear();
}

void ColumnEmitter::close_lanes() {
    if (loop_.vector > 1) out_.close();
}

// Conditions that all lanes share stand before them, with what they are made of as the first lane has it.
void ColumnEmitter::conditions() {
    std::set<ValueId> parts;
    std::set<ValueId> read_by_lanes;
    std::vector<const Inst*> before;
    for (const Inst& inst : std::views::reverse(loop_.body)) {
        const bool is_part = inst.alike || parts.contains(inst.id);
        if (is_part) {
            before.push_back(&inst);
            parts.insert(inst.operands.begin(), inst.operands.end());
        }
        if (inst.alike || (is_part && !read_by_lanes.contains(inst.id))) {
            before_lanes_.insert(&inst);
        } else {
            read_by_lanes.insert(inst.operands.begin(), inst.operands.end());
        }
    }
    for (const Inst* inst : std::views::reverse(before)) define_for_vector(*inst);
}

void ColumnEmitter::define_for_vector(const Inst& inst) {
    if (scope_.bind_inline(inst)) return;
    scope_.define(inst, inst.kind == InstKind::kCoord ? scope_.coordinate(inst, inside_, "c") : scope_.computed(inst));
}

// Lanes that go to memory, to a slot or into an accumulator are gathered in an array and leave as one vector.
void ColumnEmitter::declare_lane_arrays() {
    for (const Inst& inst : loop_.body) {
        std::string label;
        Dtype dtype = inst.dtype;
        if (leaves_in_words(inst)) {
            packed_outs_[&inst] = declare_packed(inst);
            continue;
        }
        if (inst.kind == InstKind::kAccumulate) {
            if (is_offer(inst) || packed_operand(inst) != nullptr) continue;
            label = scope_.accumulator(inst).label;
            dtype = scope_.accumulator(inst).dtype;
        } else if (inst.kind == InstKind::kStore && is_vector(inst)) {
            label = tensor(inst).name;
        } else if (inst.kind == InstKind::kKeep && !slot(inst).is_divisor && kept_load(inst) == nullptr) {
            label = slot(inst).label;
            dtype = slot(inst).dtype;
        } else {
            continue;
        }
        arrays_[&inst] = lane_array(label, dtype);
        if (inst.kind == InstKind::kAccumulate && inst.operands.size() == 2) factors_[&inst] = lane_array(label, dtype);
    }
}

// Whether a store or a slot takes a value as words that there are without packing its lanes.
bool ColumnEmitter::leaves_in_words(const Inst& inst) const {
    const bool keeps = inst.kind == InstKind::kKeep && kept_load(inst) == nullptr;
    const bool stores =
        inst.kind == InstKind::kStore && is_vector(inst) && inst.access.lanes.empty() && !inst.accumulate;
    if ((!keeps && !stores) || loop_.vector % 2 != 0) return false;
    const Dtype dtype = keeps ? slot(inst).dtype : inst.dtype;
    const Inst* made = made_here(inst.operands[0]);
    if (made == nullptr || made->dtype != dtype || !is_narrow(dtype)) return false;
    return made->packing != Packing::kNone || made->kind == InstKind::kKept || vectors_.contains(made);
}

std::string ColumnEmitter::declare_packed(const Inst& out) {
    const bool keeps = out.kind == InstKind::kKeep;
    std::string name = scope_.names().fresh((keeps ? slot(out).label : tensor(out).name) + "_packed");
    out_.line(fmt::format("{} {};", gpu_vec_type(keeps ? slot(out).dtype : out.dtype, loop_.vector), name));
    return name;
}

// The vector of bf16 or f16 whose greatest or least is taken as it lies in memory, two elements an instruction.
const std::string* ColumnEmitter::packed_operand(const Inst& accumulate) const {
    const Inst* packed = packed_source(accumulate);
    const auto vector = packed == nullptr ? vectors_.end() : vectors_.find(packed);
    return vector != vectors_.end() ? &vector->second : nullptr;
}

// What loaded or kept the vectors of such elements.
const Inst* ColumnEmitter::packed_source(const Inst& accumulate) const {
    const Monoid monoid = scope_.accumulator(accumulate).monoid;
    if ((monoid != Monoid::kMax && monoid != Monoid::kMin) || loop_.vector == 1) return nullptr;
    const Inst* made = made_here(accumulate.operands[0]);
    if (made != nullptr && takes_sizes(accumulate)) made = made_here(made->operands[0]);
    if (made != nullptr && made->kind == InstKind::kCast) made = made_here(made->operands[0]);
    if (made == nullptr || !is_narrow(made->dtype)) return nullptr;
    const bool whole = made->kind == InstKind::kKept || (is_vector(*made) && lanes_of(*made, loop_) > 1);
    return whole ? made : nullptr;
}

// Whether it is of the elements' sizes: their signs are one mask a word.
bool ColumnEmitter::takes_sizes(const Inst& accumulate) const {
    const Inst* made = made_here(accumulate.operands[0]);
    return made != nullptr && made->kind == InstKind::kMap && made->op == Op::kAbs;
}

const Inst* ColumnEmitter::made_here(ValueId value) const {
    const auto found =
        std::find_if(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) { return inst.id == value; });
    return found == loop_.body.end() ? nullptr : &*found;
}

std::string ColumnEmitter::lane_array(const std::string& label, Dtype dtype) {
    std::string name = scope_.names().fresh(label + "_lanes");
    out_.line(fmt::format("{} {}[{}];", gpu_value_type(dtype), name, loop_.vector));
    return name;
}

// How much more an integer is in each lane than in the one before, if that is one number.
std::optional<std::int64_t> ColumnEmitter::lane_step(ValueId value) const {
    if (!inside_.values.contains(value)) return 0;
    const Inst* made = made_here(value);
    if (made == nullptr) return std::nullopt;
    if (made->kind == InstKind::kCast && made->dtype == Dtype::kI64) return lane_step(made->operands[0]);
    if (made->kind == InstKind::kCoord) {
        const std::int64_t inner = scope_.kernel().axis(loop_.axes.back()).extent;
        if (inner % loop_.vector != 0 && !loop_.is_peeled()) return std::nullopt;
        return made->axis == loop_.axes.back() ? 1 : 0;
    }
    if (made->kind != InstKind::kMap || made->op != Op::kAdd) return std::nullopt;
    const auto first = lane_step(made->operands[0]);
    const auto second = lane_step(made->operands[1]);
    return first && second ? std::optional(*first + *second) : std::nullopt;
}

// Lane l of an access is element lanes[l] of its vector.
void ColumnEmitter::declare_permutations() {
    for (const Inst& inst : loop_.body) {
        const std::vector<int>& order = inst.access.lanes;
        if ((!is_vector(inst) && !lies_in_run(inst)) || order.empty()) continue;
        if (flips(order)) {
            elements_[&inst] = fmt::format("l ^ {}", order[0]);
            continue;
        }
        const std::string name = scope_.names().fresh(tensor(inst).name + "_order");
        out_.line(fmt::format("constexpr int {}[{}] = {{{}}};", name, order.size(), fmt::join(order, ", ")));
        elements_[&inst] = name + "[l]";
        orders_[&inst] = name;
    }
}

std::string ColumnEmitter::element(const Inst& inst) const {
    const auto found = elements_.find(&inst);
    return found == elements_.end() ? lane() : found->second;
}

void ColumnEmitter::lane_inst(const Inst& inst) {
    if (scope_.bind_inline(inst)) return;
    if (inst.in_lanes) return scope_.define(inst, fmt::format("(0x{:x}u >> {} & 1u) != 0", *inst.in_lanes, lane()));
    if (compared_column(inst)) return scope_.define(inst, fmt::format("{} && {}", one_matches_, scope_.computed(inst)));
    switch (inst.kind) {
        case InstKind::kLoad: return lane_load(inst);
        case InstKind::kKept: {
            if (slot(inst).is_divisor) return scope_.bind(inst.id, divisor_of_lane(inst));
            return scope_.define(inst, fmt::format("rj_get({}, {})", vectors_.at(&inst), lane()));
        }
        case InstKind::kCoord: return scope_.define(inst, scope_.coordinate(inst, inside_, lane_column()));
        case InstKind::kStore:
        case InstKind::kKeep:
        case InstKind::kAccumulate: return lane_out(inst);
        case InstKind::kCarry: return scope_.carry(inst, carried_place(inst));
        case InstKind::kCarried: return scope_.define(inst, scope_.carried_value(inst, carried_place(inst)));
        default: break;
    }
    if (const auto lanes = capped_.find(&inst); lanes != capped_.end())
        return scope_.define(inst, fmt::format("{}[{}]", lanes->second, lane()));
    if (uniforms_.contains(&inst)) return lane_uniform(inst);
    if (const auto sums = sums_where_.find(&inst); sums != sums_where_.end()) {
        const std::string place = gpu_converted(Dtype::kI64, scope_.value(inst.operands[0]));
        return scope_.define(inst, fmt::format("{}.at({}, {}, {}, {})", sums->second.name, lane(), place,
                                               scope_.kernel().sums_where_offset_bytes, sums->second.rows));
    }
    if (const std::optional<std::size_t> random = compared_random(inst))
        return scope_.define(inst, asked_of_word(inst, *random));
    if (const std::optional<WholeByte> byte = whole_byte(inst)) return scope_.define(inst, text_of(inst, *byte));
    const auto divisor = divisors_.find(&inst);
    if (divisor == divisors_.end()) return scope_.define(inst, scope_.computed(inst, shared_divisor(inst)));
    scope_.define(inst, scope_.computed(inst, divisor->second));
}

// Its conversion rounds, saturates and makes NaN 0, and a store's packing saturates once more; bounds around 0 do
// nothing to a NaN's. A quantization of bf16 rounded, bounded twice, converted and bounded twice more, of what only
// half of the lanes do in a cycle or an eighth: 22 instructions an element. Not where lanes are computed by pairs,
// in turns that do not see each other's values.
std::optional<ColumnEmitter::WholeByte> ColumnEmitter::whole_byte(const Inst& inst) const {
    if (inst.kind != InstKind::kCast || inst.dtype != Dtype::kI8 || by_pairs()) return std::nullopt;
    if (gpu_value_type(scope_.dtype(inst.operands[0])) != "float") return std::nullopt;
    WholeByte byte{.value = inst.operands[0]};
    const Inst* made = made_here(byte.value);
    for (; made != nullptr && made->kind == InstKind::kMap; made = made_here(byte.value)) {
        if (made->op != Op::kMax && made->op != Op::kMin) break;
        const std::size_t bound = constant(made->operands[0]) != nullptr ? 0 : 1;
        if (constant(made->operands[bound]) == nullptr) break;
        const double number = constant(made->operands[bound])->value;
        const bool is_largest = made->op == Op::kMin;
        if (number != std::floor(number) || (is_largest ? number < 0 || number > 127 : number > 0 || number < -128))
            break;
        int& limit = is_largest ? byte.most : byte.least;
        const int whole = static_cast<int>(number);
        limit = is_largest ? std::min(limit, whole) : std::max(limit, whole);
        byte.value = made->operands[1 - bound];
    }
    byte.rounds = made != nullptr && made->kind == InstKind::kMap && made->op == Op::kRound;
    if (byte.rounds) byte.value = made->operands[0];
    return byte;
}

std::string ColumnEmitter::text_of(const Inst& cast, const WholeByte& byte) const {
    std::string text = fmt::format("{}({})", byte.rounds ? "rj_nearest" : "rj_to_i32", scope_.value(byte.value));
    const bool leaves = std::all_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
        bool uses = false;
        each_use(inst, [&](ValueId value) { uses = uses || value == cast.id; });
        return !uses || (inst.kind == InstKind::kStore && arrays_.contains(&inst));
    });
    if (byte.most < 127) text = fmt::format("rj_min({}, {})", text, byte.most);
    if (byte.least > -128) text = fmt::format("rj_max({}, {})", text, byte.least);
    return leaves ? text : fmt::format("rj_to_i8({})", text);
}

std::string ColumnEmitter::divisor_of_lane(const Inst& inst) const {
    return fmt::format("{}[{}]", kept_.at(inst.index), place_in_registers());
}

// What a lane's quotient is by that was prepared before: for all rows of the block, or, where several are by the same
// number of at least 1, before the first of them; "" where it is none. A logistic function's derivative has three: a
// convolution's backward takes 24 instructions of 580 less.
std::string ColumnEmitter::shared_divisor(const Inst& inst) {
    if (inst.kind == InstKind::kMap && inst.op == Op::kDiv) {
        const Inst* kept = made_here(inst.operands[1]);
        if (kept != nullptr && kept->kind == InstKind::kKept && slot(*kept).is_divisor)
            return scope_.value(inst.operands[1]);
    }
    const auto is_by_one_up = [](const Inst& one) { return one.by_one_up && one.dtype == Dtype::kF32; };
    if (!is_by_one_up(inst)) return "";
    const ValueId divisor = inst.operands[1];
    const auto quotients = std::count_if(loop_.body.begin(), loop_.body.end(), [&](const Inst& one) {
        return is_by_one_up(one) && one.operands[1] == divisor;
    });
    if (quotients < 2) return "";
    const auto [prepared, is_new] = lane_divisors_.try_emplace(divisor);
    if (is_new) {
        prepared->second = scope_.names().fresh("one_up");
        out_.line(fmt::format("const rj_one_up {} = rj_one_up_of({});", prepared->second, scope_.value(divisor)));
    }
    return prepared->second;
}

// Which of a thread's registers holds this lane's sum.
std::string ColumnEmitter::carried_place(const Inst& inst) const {
    RJ_CHECK(resident_, "emit gpu: {}: {} is carried over a serial loop", scope_.kernel().name,
             scope_.carried(inst.index));
    if (loop_.part != ColumnLoop::Part::kEnds) return place_in_registers();
    // Behind those of the row's whole vectors.
    const std::int64_t whole = carried_lanes(scope_.kernel(), inst.index) - loop_.iterations * loop_.vector;
    return fmt::format("{} + {}", whole, place_in_registers());
}

std::string ColumnEmitter::place_in_registers() const {
    if (loop_.iterations == 1) return lane();
    if (loop_.vector == 1) return iteration();
    return fmt::format("{} * {} + {}", in_parentheses(iteration()), loop_.vector, lane());
}

void ColumnEmitter::lane_load(const Inst& inst) {
    if (is_uniform(inst) || copied_to(inst) != nullptr) return;  // before the loop, or only kept
    const auto vec = vectors_.find(&inst);
    // A place that a lane's value decides has its name only here; what of it is the row's stands before the loop.
    if (vec == vectors_.end())
        return scope_.define(inst, scope_.load_one(inst, scope_.address(inst, inside_, lane_column())));
    Inst unpacked = inst;
    unpacked.comment.clear();  // stands at the load
    scope_.define(unpacked,
                  fmt::format("rj_get({}, {})", vec->second, lanes_of(inst, loop_) == 1 ? "0" : element(inst)));
}

void ColumnEmitter::lane_out(const Inst& inst) {
    if (inst.kind == InstKind::kKeep && slot(inst).is_divisor)
        return out_.line(
            fmt::format("{} = {};", divisor_of_lane(inst), GpuScope::prepared(scope_.value(inst.operands[0]))));
    const auto array = arrays_.find(&inst);
    if (array == arrays_.end()) {
        if (inst.kind == InstKind::kStore) scope_.store_one(inst, addresses_.at(&inst), live());
        return;
    }
    std::string stored = scope_.value(inst.operands[0]);
    if (inst.accumulate)
        stored = gpu_operation(inst.op, fmt::format("rj_get({}, {})", vectors_.at(&inst), element(inst)), stored);
    out_.line(fmt::format("{}[{}] = {};", array->second, element(inst), stored), inst.comment);
    if (const auto factor = factors_.find(&inst); factor != factors_.end())
        out_.line(fmt::format("{}[{}] = {};", factor->second, element(inst), scope_.value(inst.operands[1])));
}

std::vector<std::string> ColumnEmitter::live() const {
    return scope_.live().empty() ? std::vector<std::string>{} : std::vector<std::string>{scope_.live()};
}

// Where NVRTC was seen to store a vector's words one by one: at an address that takes a remainder, of a row that is
// not in registers or of a tile, and of one of several tensors that a kernel without reductions stores.
bool ColumnEmitter::stores_whole(const GpuAddress& at) const {
    const Schedule& schedule = scope_.kernel().schedule;
    const auto stores = std::count_if(loop_.body.begin(), loop_.body.end(),
                                      [](const Inst& inst) { return inst.kind == InstKind::kStore; });
    return takes_remainder(at) || schedule.residency != Residency::kRegisters || scope_.kernel().product ||
           (schedule.family == Family::kElementwise && stores > 1);
}

// After the lanes: what leaves as a vector.
void ColumnEmitter::leave(const Inst& inst) {
    if (inst.kind == InstKind::kKeep) return keep(inst);
    if (const std::string* packed = inst.kind == InstKind::kAccumulate ? packed_operand(inst) : nullptr)
        return fold(inst, takes_sizes(inst) ? fmt::format("rj_sizes_of({})", *packed) : *packed);
    const auto array = arrays_.find(&inst);
    if ((array == arrays_.end() && !packed_outs_.contains(&inst)) || is_offer(inst)) return;
    if (terms_.contains(&inst)) return gather(inst);
    if (inst.kind == InstKind::kAccumulate) {
        const auto factor = factors_.find(&inst);
        out_.line(factor == factors_.end() ? fmt::format("{}.add({});", scope_.state(inst.index), array->second)
                                           : fmt::format("{}.add_products({}, {});", scope_.state(inst.index),
                                                         array->second, factor->second));
    } else {
        const GpuAddress at = by_iteration(addresses_.at(&inst), loop_, scope_, iteration());
        std::vector<std::string> conditions = live();
        if (!at.inside.empty()) conditions.push_back(at.inside);
        const std::string aligned = at.aligned.empty() ? "" : ", " + at.aligned;
        const std::string_view function = !aligned.empty()   ? "rj_store_peeled"
                                          : stores_whole(at) ? "rj_store_whole"
                                                             : "rj_store";
        const std::string store = fmt::format("{}({}, {}{});", function, at.text(), packed(inst), aligned);
        out_.line(conditions.empty() ? store : fmt::format("if ({}) {}", fmt::join(conditions, " && "), store));
    }
}

void ColumnEmitter::fold(const Inst& accumulate, const std::string& packed) {
    out_.line(folds_.contains(&accumulate) ? fmt::format("{}.add({});", folds_.at(&accumulate), packed)
                                           : fmt::format("{}.add_packed({});", scope_.state(accumulate.index), packed));
}

// The vector that a store or a slot takes.
std::string ColumnEmitter::packed(const Inst& inst) const {
    if (const auto words = packed_outs_.find(&inst); words != packed_outs_.end()) return words->second;
    const Dtype dtype = inst.kind == InstKind::kKeep ? slot(inst).dtype : inst.dtype;
    return fmt::format("rj_pack<{}>({})", gpu_storage_type(dtype), arrays_.at(&inst));
}

void ColumnEmitter::gather(const Inst& accumulate) {
    const std::int64_t whole = scope_.kernel().whole_iterations(loop_);
    const std::string& lanes = arrays_.at(&accumulate);
    const std::string which = iteration();
    const bool all = whole == loop_.iterations;
    if (!all) {
        out_.line(fmt::format("if ({} >= {}) {}.add({});", which, whole, scope_.state(accumulate.index), lanes));
        out_.open(fmt::format("if ({} < {})", which, whole));
    }
    out_.line("#pragma unroll");
    out_.line(fmt::format("for (int l = 0; l < {0}; ++l) {1}[{2} * {0} + l] = {3}[l];", loop_.vector,
                          terms_.at(&accumulate), in_parentheses(which), lanes));
    if (!all) out_.close();
}

}  // namespace rowjit::gpu_emit
