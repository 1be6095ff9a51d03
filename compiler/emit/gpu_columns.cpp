// A column loop around its lanes: what stands before it, its iterations in groups, and their loads. The rest of
// ColumnEmitter is in gpu_column_chosen.cpp (loads of which a vector needs one), gpu_column_lanes.cpp (what is
// computed), gpu_column_random.cpp (random numbers), gpu_column_sums.cpp (sums over positions), gpu_column_words.cpp
// (two lanes a word), gpu_column_kept.cpp (what loops keep for each other) and gpu_column_passing.cpp (what most
// vectors leave out).
#include "compiler/emit/gpu_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/gpu_column_emitter.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/passes/passes.h"

namespace rowjit::gpu_emit {
namespace {

// Loads that a thread of a serial loop issues before it computes on them. With 1024 threads on an SM 64 bytes a thread
// are 64 KB in flight; about 46 KB saturate an H100's memory. Columns that are loaded one by one, as those of rows of
// an odd number, take a register each.
constexpr std::int64_t kBytesInFlightPerThread = 80;

constexpr std::int64_t kMostInFlight = 16;
constexpr std::int64_t kMostOfShared = 4;  // of a resident row's loop that reads only what all rows share

// As many loads at once, or up to a quarter fewer where the last group then lacks fewer. H200, logsumexp of bf16 rows,
// % of copy with four vectors at once and with five: 128256 columns, 63 vectors a thread, 101 and 97; 151936, 75, 87
// and 96; 200064, 98, 80 and 94.
std::int64_t even_group(std::int64_t iterations, std::int64_t most) {
    const auto idle = [&](std::int64_t size) { return (size - iterations % size) % size; };
    std::int64_t best = most;
    for (std::int64_t size = most - 1; size > most * 3 / 4; --size) {
        if (idle(size) < idle(best)) best = size;
    }
    return best;
}

bool touches_memory(const Inst& inst) { return inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore; }
bool is_turned_load(const Inst& inst) { return inst.kind == InstKind::kLoad && inst.turn > 0; }
bool is_slot(const Inst& inst) { return inst.kind == InstKind::kKeep || inst.kind == InstKind::kKept; }

}  // namespace

ColumnEmitter::ColumnEmitter(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept)
    : loop_(loop), scope_(scope), out_(scope.out()), kept_(kept) {
    inside_.columns = &loop;
    inside_.axes.insert(loop.axes.begin(), loop.axes.end());
    for (const Inst& inst : loop.body) {
        if (inst.id >= 0 && !(touches_memory(inst) && is_uniform(inst))) inside_.values.insert(inst.id);
    }
}

void ColumnEmitter::run() {
    RJ_CHECK(loop_.tail != ColumnLoop::Tail::kScalar, "emit gpu: {}: a scalar tail", scope_.kernel().name);
    out_.blank();
    find_accesses();
    find_sums_where();
    find_chosen();
    choose_group();
    declare_divisors();
    count_rows();
    declare_fractions();
    declare_splats();
    declare_kept();
    name_vectors();
    declare_terms();
    declare_folds();
    if (several_groups()) {
        out_.line(resident_ ? "#pragma unroll" : "RJ_ROLLED");
        out_.open(loop_.backward
                      ? fmt::format("for (int first = {} / {} * {}; first >= 0; first -= {})", loop_.iterations - 1,
                                    group_size(), group_size(), group_size())
                      : fmt::format("for (int first = 0; first < {}; first += {})", loop_.iterations, group_size()));
    }
    if (group_ == 1 && !fetches_after_loads()) {
        single();
    } else {
        grouped();
    }
    if (several_groups()) out_.close();
    for (const auto& [inst, terms] : terms_) out_.line(fmt::format("{}.add({});", scope_.state(inst->index), terms));
    for (const auto& [inst, fold] : folds_)
        out_.line(fmt::format("{}.add_one({}.result());", scope_.state(inst->index), fold));
}

// Loads at one address stand before the loop; loads whose address no lane's value decides, at its front.
void ColumnEmitter::find_accesses() {
    if (loop_.is_peeled()) scope_.head();
    for (const Inst& inst : loop_.body) {
        if (!touches_memory(inst)) continue;
        RJ_CHECK(inst.access.kind != Access::Kind::kUnknown, "emit gpu: {}: the access of {} is not decided",
                 scope_.kernel().name, tensor(inst).name);
        if (is_uniform(inst)) {
            RJ_CHECK(inst.kind == InstKind::kLoad, "emit gpu: {}: every column stores to one place of {}",
                     scope_.kernel().name, tensor(inst).name);
            scope_.define(inst, scope_.load_one(inst, scope_.address(inst, {}, "")));
            scope_.ask(inst);
            continue;
        }
        if (inst.held >= 0 || inst.turn > 0) continue;
        if (scope_.is_fetched(inst)) {
            front_.push_back(&inst);
            continue;
        }
        const bool whole = is_vector(inst) || lies_in_run(inst) || inst.access.kind == Access::Kind::kSplat;
        addresses_[&inst] = scope_.address(inst, inside_, whole ? column(inst.access.anchor) : lane_column());
        if (lies_in_run(inst) && inst.access.lanes[0] > 0)  // lane 0 is not the first of it
            addresses_[&inst].offset += fmt::format(" - {}", inst.access.lanes[0]);
        const bool reads = inst.kind == InstKind::kLoad || inst.accumulate;
        if ((whole && reads) || is_single_load(inst)) front_.push_back(&inst);
    }
}

// Where rows stay in their stages, the next fetch is after the row. A peeled row's ends were taken before the rest.
bool ColumnEmitter::fetches_after_loads() const {
    if (loop_.part == ColumnLoop::Part::kEnds || !scope_.kernel().schedule.fetches_ahead()) return false;
    return std::any_of(front_.begin(), front_.end(),
                       [&](const Inst* load) { return scope_.is_fetched(*load) && !stays_in_stage(*load); });
}

// With one column per thread a gather is as good as a vector, unless a lane's value decides its address.
bool ColumnEmitter::is_single_load(const Inst& inst) const {
    if (inst.kind != InstKind::kLoad || loop_.vector != 1) return false;
    return std::none_of(inst.coords.begin(), inst.coords.end(), [&](const Coord& coord) {
        const std::vector<std::int32_t> data = coord.data_nodes();
        return std::any_of(data.begin(), data.end(), [&](std::int32_t id) { return inside_.values.contains(id); });
    });
}

// A resident loop that reads the row is one group of all its iterations. One that reads only what all rows share
// (weights, from a cache) holds a few of its vectors at a time: a layer norm of 64 columns a thread took 168
// registers with all of them at its front, which left one row on a multiprocessor.
void ColumnEmitter::choose_group() {
    std::int64_t bytes = 0;
    bool whole = std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
        return (inst.kind == InstKind::kKeep && in_registers(inst)) || is_turned_load(inst);
    });
    for (const Inst* load : front_) {
        bytes += static_cast<std::int64_t>(size_bytes(load->dtype)) * lanes_of(*load, loop_);
        whole = whole || (scope_.kernel().by_row(*load) && !stays_in_stage(*load));
    }
    resident_ = loop_.is_resident();
    const std::int64_t most = std::clamp(kBytesInFlightPerThread / std::max<std::int64_t>(bytes, 1), std::int64_t{1},
                                         std::min(resident_ ? kMostOfShared : kMostInFlight, loop_.iterations));
    group_ = even_group(loop_.iterations, most);
    if (!resident_) return;
    // Of a prime number of vectors the last group has fewer where copies stand between them, which keep a compiler from
    // asking for more than a group's first: layer_norm's derivatives of 202048 f32 columns, seven vectors a thread,
    // 0.131 ms so, 0.144 one by one. Elsewhere it is no better, and a layer norm of 1280 bf16 columns 0.0878, 0.0816.
    std::int64_t alike = group_;
    while (loop_.iterations % alike != 0) --alike;
    if (!scope_.refills(loop_) || 2 * alike > group_) group_ = alike;
    if (whole || front_.empty()) group_ = loop_.iterations;
}

// Divisions by a value of the row: what can be done once for all of them stands before the loop.
void ColumnEmitter::declare_divisors() {
    for (const Inst& inst : loop_.body) {
        if (inst.kind != InstKind::kMap || inst.op != Op::kDiv || inside_.values.contains(inst.operands[1])) continue;
        divisors_[&inst] = scope_.divisor(scope_.value(inst.operands[1]));
    }
}

// Of a peeled row the loop over its ends is another of the same.
void ColumnEmitter::count_rows() {
    if (loop_.part == ColumnLoop::Part::kEnds) return;
    for (const Inst& inst : loop_.body) {
        if (inst.kind == InstKind::kCarry) scope_.count_row(inst.index);
    }
}

// Pairs are dear to combine, vector by vector: what a thread has of a resident row they take at once, but for the
// vectors of which only some threads have one. Of a row in its stage as many registers would have to hold it.
void ColumnEmitter::declare_terms() {
    const std::int64_t whole = scope_.kernel().whole_iterations(loop_);
    if (!resident_ || whole < 2 || scope_.kernel().schedule.residency == Residency::kStages) return;
    for (const Inst& inst : loop_.body) {
        if (inst.kind != InstKind::kAccumulate || components(scope_.accumulator(inst).monoid) != 2) continue;
        const Accumulator& accumulator = scope_.accumulator(inst);
        terms_[&inst] = scope_.names().fresh(accumulator.label + "_terms");
        out_.line(fmt::format("{} {}[{}];", gpu_value_type(accumulator.dtype), terms_[&inst], whole * loop_.vector));
    }
}

// The greatest or the least of narrow elements, of all the thread's vectors.
void ColumnEmitter::declare_folds() {
    for (const Inst& inst : loop_.body) {
        const Inst* packed = inst.kind == InstKind::kAccumulate ? packed_source(inst) : nullptr;
        if (packed == nullptr || loop_.iterations == 1) continue;
        const Accumulator& accumulator = scope_.accumulator(inst);
        folds_[&inst] = scope_.names().fresh(accumulator.label + "_packed");
        out_.line(fmt::format("rj_packed_fold<{}, {}> {};",
                              accumulator.monoid == Monoid::kMax ? "rj_larger" : "rj_smaller",
                              gpu_storage_type(packed->dtype), folds_[&inst]));
    }
}

void ColumnEmitter::name_vectors() {
    for (const Inst& inst : loop_.body) {
        if (inst.held >= 0) vectors_[&inst] = scope_.held(inst) + resident_entry();
    }
    for (const Inst* load : front_) {
        if (vectors_.contains(load)) continue;
        vectors_[load] = scope_.names().fresh(tensor(*load).name + (load->accumulate ? "_old" : "_vec")) + entry();
    }
    for (const auto& [load, first] : chosen_as_) vectors_[load] = vectors_.at(first);
    for (const Inst& inst : loop_.body) {
        if (is_turned_load(inst))
            vectors_[&inst] = array_of(vectors_.at(&not_turned(inst))) + "[" + turned_iteration(inst) + "]";
    }
}

// The load that a turned one is another vector of.
const Inst& ColumnEmitter::not_turned(const Inst& turned) const {
    const auto found = std::find_if(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
        return inst.kind == InstKind::kLoad && inst.turn == 0 && inst.index == turned.index &&
               inst.coords == turned.coords;
    });
    RJ_CHECK(found != loop_.body.end() && group_ == loop_.iterations, "emit gpu: {}: {} is turned, and not loaded",
             scope_.kernel().name, tensor(turned).name);
    return *found;
}

void ColumnEmitter::single() {
    out_.open("");
    declare_column();
    declare_offers();
    const bool guarded = open_guard();
    loads();
    if (awaits_singly()) await_loads();
    compute();
    refill();
    if (guarded) out_.close();
    offer();
    out_.close();
}

// A loop of one iteration without a reduction, whose loads are those that the row has.
bool ColumnEmitter::awaits_singly() const {
    return scope_.kernel().loads_together != LoadsTogether::kNot && loop_.iterations == 1 &&
           scope_.kernel().schedule.family == Family::kElementwise;
}

void ColumnEmitter::grouped() {
    for (const Inst* load : front_) {
        const std::string& name = vectors_.at(load);
        if (!declared_.insert(name).second) continue;
        out_.line(fmt::format("{} {}{}{};", gpu_vec_type(load->dtype, lanes_of(*load, loop_)), array_of(name),
                              entries(), initial()));
    }
    if (!front_.empty()) {
        open_iterations(true);
        const bool guarded = open_guard();
        loads();
        if (guarded) out_.close();
        out_.close();
        await_loads();
    }
    if (fetches_after_loads()) scope_.fetch_ahead();
    open_iterations(computing_needs_column());
    declare_offers();
    const bool guarded = open_guard();
    compute();
    refill();
    if (guarded) out_.close();
    offer();
    out_.close();
}

// What was read of each place that a row to come takes.
void ColumnEmitter::refill() {
    if (!scope_.refills(loop_)) return;
    std::vector<std::string> read;
    for (const std::int64_t place : loop_.refills) {
        const auto found = std::ranges::find_if(
            loop_.body, [&](const Inst& inst) { return place_in_stage(scope_.kernel(), inst) == place; });
        read.push_back(vectors_.at(&*found));
    }
    scope_.refill(loop_, loop_.iterations > 1 ? iteration() : "0", read);
}

// Nothing is computed before the loads from memory are on their way.
void ColumnEmitter::await_loads() {
    const LoadsTogether which = scope_.kernel().loads_together;
    if (which == LoadsTogether::kNot) return;
    const std::int64_t whole = several_groups() ? 0 : scope_.kernel().whole_iterations(loop_);
    const bool all = has_vector().empty() || which >= LoadsTogether::kAll;
    const std::string first = all ? group_size() : std::to_string(whole);
    std::vector<std::string> arrays;
    for (const Inst* load : front_) {
        if (load->stage_offset_bytes >= 0 || scope_.is_fetched(*load) || copied_to(*load) != nullptr) continue;
        arrays.push_back(array_of(vectors_.at(load)));
    }
    if (arrays.empty() || first == "0") return;
    std::vector<std::string> numbers;
    if (which == LoadsTogether::kAllAndNumbers && !several_groups()) numbers = scope_.take_asked();
    const std::string words = numbers.empty() ? "0" : fmt::format("rj_number_words({})", fmt::join(numbers, ", "));
    out_.line(fmt::format("rj_together<{}>({}, {});", first, words, fmt::join(arrays, ", ")));
}

// Of what is loaded: loads of all vectors are awaited by threads too that have one fewer.
std::string ColumnEmitter::initial() const {
    const bool all = scope_.kernel().loads_together >= LoadsTogether::kAll;
    return all && !has_vector().empty() ? " = {}" : "";
}

void ColumnEmitter::open_iterations(bool needs_column) {
    out_.line("#pragma unroll");
    out_.open(fmt::format("for (int i = 0; i < {}; ++i)", group_size()));
    if (needs_column) declare_column();
}

// Whether anything but the loads at the front asks where in the row it is.
bool ColumnEmitter::computing_needs_column() const {
    if (loop_.tail != ColumnLoop::Tail::kNone) return true;
    return std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
        if (is_slot(inst)) return !in_registers(inst);
        if (inst.kind == InstKind::kLoad) return !is_uniform(inst) && !vectors_.contains(&inst);
        return inst.kind == InstKind::kStore || inst.kind == InstKind::kCoord;
    });
}

void ColumnEmitter::declare_column() {
    out_.line(fmt::format("const int c = {};", column_of(loop_, scope_, loop_.iterations > 1 ? iteration() : "")));
    if (divides_column()) out_.line("RJ_NOT_NEGATIVE(c);");
}

// Rotary embedding of 32 heads took 56 registers with signed remainders, and 40 without.
bool ColumnEmitter::divides_column() const {
    return std::any_of(addresses_.begin(), addresses_.end(),
                       [](const auto& address) { return takes_remainder(address.second); });
}

// Under which this thread has a vector in an iteration; "" where each always does.
std::string ColumnEmitter::has_vector() const {
    std::vector<std::string> conditions;
    if (loop_.iterations % group_ != 0) conditions.push_back(fmt::format("first + i < {}", loop_.iterations));
    if (loop_.tail == ColumnLoop::Tail::kVector)
        conditions.push_back(inside_row(loop_, scope_, resident_ ? iteration() : ""));
    return fmt::format("{}", fmt::join(conditions, " && "));
}

bool ColumnEmitter::open_guard() {
    const std::string condition = has_vector();
    if (condition.empty()) return false;
    out_.open(guard(condition));
    return true;
}

void ColumnEmitter::loads() {
    bool copies = false;
    conditions_of_chosen();
    for (const Inst* load : front_) {
        if (const Slot* window = copied_to(*load)) {
            copy(*load, *window);
            copies = true;
            continue;
        }
        const std::string& name = vectors_.at(load);
        const std::string type =
            (awaits_singly() ? "" : "const ") + gpu_vec_type(load->dtype, lanes_of(*load, loop_)) + " ";
        out_.line(fmt::format("{}{} = {};", declared_.contains(name) ? "" : type, name, loaded(*load)), load->comment);
    }
    if (!copies) return;
    out_.line("rj_copies_issued();");
    out_.line(fmt::format("rj_wait_for_copies<{}>();", scope_.kernel().schedule.ahead), "those of rows before");
}

std::string ColumnEmitter::loaded(const Inst& load) const {
    const int lanes = lanes_of(load, loop_);
    if (load.stage_offset_bytes >= 0) return staged(load.stage_offset_bytes, iteration(), load.dtype, lanes);
    if (scope_.is_fetched(load)) return scope_.fetched(load);
    if (const auto choice = chosen_by_.find(&load); choice != chosen_by_.end())
        return scope_.load(load, chosen_address(*choice->second), lanes);
    return scope_.load(load, by_iteration(addresses_.at(&load), loop_, scope_, iteration()), lanes);
}

// What lies in the row's stage for an iteration.
std::string ColumnEmitter::staged(std::int64_t offset_bytes, const std::string& iteration, Dtype dtype,
                                  int lanes) const {
    const std::int64_t bytes = lanes * static_cast<std::int64_t>(size_bytes(dtype));
    return fmt::format("rj_shared_load_vec<{}>({})", gpu_vec_type(dtype, lanes),
                       scope_.staged(offset_bytes, loop_.iterations > 1 ? in_parentheses(iteration) : "", bytes));
}

void emit_column_loop(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    ColumnEmitter(loop, scope, kept).run();
}

void emit_tested(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    ColumnEmitter(loop, scope, kept).declare_tested();
}

}  // namespace rowjit::gpu_emit
