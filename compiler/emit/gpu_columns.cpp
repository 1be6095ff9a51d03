#include "compiler/emit/gpu_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <ranges>
#include <set>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/emit/gpu_pairs.h"
#include "compiler/emit/passing.h"

namespace rowjit {
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

bool is_vector(const Inst& inst) { return inst.access.kind == Access::Kind::kVector; }
bool is_uniform(const Inst& inst) { return inst.access.kind == Access::Kind::kUniform; }
bool touches_memory(const Inst& inst) { return inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore; }
bool is_turned_load(const Inst& inst) { return inst.kind == InstKind::kLoad && inst.turn > 0; }
bool is_slot(const Inst& inst) { return inst.kind == InstKind::kKeep || inst.kind == InstKind::kKept; }

int lanes_of(const Inst& load, const ColumnLoop& loop) { return is_vector(load) ? loop.vector : 1; }

// "[2]" where a thread has as many vectors of a resident loop.
std::string all_entries(const ColumnLoop& loop) {
    return loop.iterations > 1 ? fmt::format("[{}]", loop.iterations) : "";
}

bool takes_remainder(const GpuAddress& address) { return address.offset.find('%') != std::string::npos; }

// Whether lane l is element l ^ k.
bool flips(const std::vector<int>& order) {
    for (std::size_t l = 0; l < order.size(); ++l) {
        if (order[l] != (static_cast<int>(l) ^ order[0])) return false;
    }
    return true;
}

// The vector of so many rows back.
std::string window_entry(const std::string& window, int rows_back) { return fmt::format("{}[{}]", window, rows_back); }

// Where in shared memory the thread's vector of a row of a window is that lies there.
std::string place_in_ring(const Slot& window, const ColumnLoop& loop, const GpuScope& scope, const std::string& row) {
    return fmt::format("{} + ({} * {} + rj_thread()) * {}", window.shared_offset_bytes, row,
                       scope.kernel().block_threads(), loop.vector * size_bytes(window.dtype));
}

std::string column(int lane) { return lane == 0 ? "c" : fmt::format("(c + {})", lane); }

std::string in_parentheses(const std::string& text) {
    return text.find(' ') == std::string::npos ? text : "(" + text + ")";
}

// Which of the vectors side by side is a thread's: round * threads + t, no round being the only one.
std::string vector_of(const GpuScope& scope, const std::string& round) {
    if (scope.threads() == 1) return round.empty() ? "0" : round;
    return round.empty() ? "t" : fmt::format("{} * {} + t", in_parentheses(round), scope.threads());
}

std::string first_lane(const ColumnLoop& loop, const std::string& vector) {
    return loop.vector > 1 && vector != "0" ? fmt::format("{} * {}", in_parentheses(vector), loop.vector) : vector;
}

// A group of a loop's iterations, by its first, and one of them.
constexpr const char* kGroup = "first";
constexpr const char* kOfGroup = "first + i";

// Columns from a thread's vector to its next.
std::int64_t step_of(const ColumnLoop& loop, const GpuScope& scope) {
    const std::int64_t blocks = scope.kernel().shares_rounds(loop) ? scope.kernel().schedule.column_blocks : 1;
    return std::int64_t{scope.threads()} * loop.vector * blocks;
}

// Blocks that share a round of the columns, or each with all its rounds behind the other's. What an iteration adds
// stands by itself.
std::string place_of(const ColumnLoop& loop, const GpuScope& scope, const std::string& iteration) {
    const std::int64_t blocks = scope.kernel().schedule.column_blocks;
    const bool shares = blocks > 1 && scope.kernel().shares_rounds(loop);
    const std::int64_t threads_of_block = scope.threads() * (shares ? 1 : loop.iterations);
    std::vector<std::string> terms;
    if (blocks > 1) terms.push_back(fmt::format("column_block * {}", threads_of_block));
    if (scope.threads() > 1) terms.emplace_back("t");
    if (!terms.empty()) terms = {first_lane(loop, fmt::format("{}", fmt::join(terms, " + ")))};
    if (!iteration.empty()) terms.push_back(fmt::format("{} * {}", in_parentheses(iteration), step_of(loop, scope)));
    return terms.empty() ? "0" : fmt::format("{}", fmt::join(terms, " + "));
}

std::string column_of(const ColumnLoop& loop, GpuScope& scope, const std::string& iteration) {
    std::string place = place_of(loop, scope, iteration);
    switch (loop.part) {
        case ColumnLoop::Part::kRow: return place;
        case ColumnLoop::Part::kWhole: return fmt::format("{} + {}", scope.head(), place);
        case ColumnLoop::Part::kEnds:
            return fmt::format("rj_peeled_end<{}>({}, {}, {})", scope.kernel().schedule.vector, place, scope.head(),
                               loop.columns);
    }
    RJ_CHECK(false, "emit gpu: {}: part {} of a row", scope.kernel().name, static_cast<int>(loop.part));
}

// Where a loop's iterations are unrolled, what one adds to the address of a vector stands by itself, and is a constant
// in the access. Of a column, an int that is widened before it is added to a pointer, the compiler takes no constant
// out: with the place in shared memory, a copy of 16 bytes into it took eleven instructions, and takes four. In a group
// of a serial loop too where its loads wait for each other, and a softmax's 131072 columns spilled their addresses; a
// top-k of f32 spilled with constants.
GpuAddress by_iteration(GpuAddress address, const ColumnLoop& loop, GpuScope& scope, const std::string& iteration) {
    if (loop.iterations == 1 || address.offset != "c") return address;
    const bool apart = iteration == kOfGroup && loop.part != ColumnLoop::Part::kEnds;
    if (loop.is_resident()) {
        address.offset = column_of(loop, scope, iteration);
    } else if (apart && scope.kernel().loads_together != LoadsTogether::kNot) {
        address.offset = fmt::format("{} + i * {}", column_of(loop, scope, kGroup), step_of(loop, scope));
    }
    return address;
}

// Where a loop is unrolled, so that its iteration is known, the compiler leaves out the guards of those that need none,
// and may then load when it likes: an add_rms_norm of 128256 f32 columns over 16 blocks spilled with all eight guarded.
std::string inside_row(const ColumnLoop& loop, const GpuScope& scope, const std::string& unrolled_iteration) {
    const std::int64_t whole = unrolled_iteration.empty() ? 0 : scope.kernel().whole_iterations(loop);
    const bool shifts = loop.part == ColumnLoop::Part::kWhole;  // and a vector may be neither in nor out
    const std::string inside =
        shifts ? fmt::format("c <= {}", loop.columns - loop.vector) : fmt::format("c < {}", loop.columns);
    return whole == 0 ? inside : fmt::format("({} < {} || {})", unrolled_iteration, whole, inside);
}

std::string guard(const std::string& condition) {
    return condition.front() == '(' ? "if " + condition : fmt::format("if ({})", condition);
}

// Opens all iterations of a resident loop, with the column and its guard.
void open_resident(const ColumnLoop& loop, GpuScope& scope) {
    SourceWriter& out = scope.out();
    if (loop.is_peeled()) scope.head();
    out.line("#pragma unroll");
    out.open(fmt::format("for (int i = 0; i < {}; ++i)", loop.iterations));
    out.line(fmt::format("const int c = {};", column_of(loop, scope, loop.iterations > 1 ? "i" : "")));
    if (loop.tail == ColumnLoop::Tail::kVector) out.open(guard(inside_row(loop, scope, "i")));
}

void close_resident(const ColumnLoop& loop, GpuScope& scope) {
    if (loop.tail == ColumnLoop::Tail::kVector) scope.out().close();
    scope.out().close();
}

class ColumnEmitter {
  public:
    ColumnEmitter(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept)
        : loop_(loop), scope_(scope), out_(scope.out()), kept_(kept) {
        inside_.columns = &loop;
        inside_.axes.insert(loop.axes.begin(), loop.axes.end());
        for (const Inst& inst : loop.body) {
            if (inst.id >= 0 && !(touches_memory(inst) && is_uniform(inst))) inside_.values.insert(inst.id);
        }
    }

    void run() {
        RJ_CHECK(loop_.tail != ColumnLoop::Tail::kScalar, "emit gpu: {}: a scalar tail", scope_.kernel().name);
        out_.blank();
        find_accesses();
        find_chosen();
        choose_group();
        declare_divisors();
        declare_fractions();
        declare_splats();
        declare_kept();
        name_vectors();
        declare_terms();
        declare_folds();
        if (several_groups()) {
            out_.line(resident_ ? "#pragma unroll" : "RJ_ROLLED");
            out_.open(loop_.backward ? fmt::format("for (int first = {} / {} * {}; first >= 0; first -= {})",
                                                   loop_.iterations - 1, group_size(), group_size(), group_size())
                                     : fmt::format("for (int first = 0; first < {}; first += {})", loop_.iterations,
                                                   group_size()));
        }
        if (group_ == 1 && !fetches_after_loads()) {
            single();
        } else {
            grouped();
        }
        if (several_groups()) out_.close();
        for (const auto& [inst, terms] : terms_)
            out_.line(fmt::format("{}.add({});", scope_.state(inst->index), terms));
        for (const auto& [inst, fold] : folds_)
            out_.line(fmt::format("{}.add_one({}.result());", scope_.state(inst->index), fold));
    }

    // Before steps that find the row in registers: what they test of each vector is the same in all of them.
    void declare_tested() {
        const std::vector<const Inst*> test = few_pass();
        const Inst* element = rises_with(test);
        resident_ = loop_.is_resident();
        if (element == nullptr || element->kind != InstKind::kKept || !in_registers(*element) || !resident_) return;
        for (std::size_t i = 1; i + 1 < test.size(); ++i) {
            if (test[i]->operands.size() > 1 && scope_.value(test[i]->operands[1]).empty()) return;
        }
        const std::string name = scope_.names().fresh("tested");
        out_.line(fmt::format("float {}{};", name, all_entries(loop_)), "of each vector, for all steps");
        open_resident(loop_, scope_);
        vectors_[element] = fmt::format("{}{}", kept_.at(element->index), loop_.iterations > 1 ? "[i]" : "");
        out_.line(fmt::format("{}{} = {};", name, loop_.iterations > 1 ? "[i]" : "", tested_of(test)));
        close_resident(loop_, scope_);
        scope_.set_tested(*test.back(), name);
    }

  private:
    const KernelTensor& tensor(const Inst& inst) const { return scope_.tensor(inst); }
    const Slot& slot(const Inst& inst) const { return scope_.slot(inst); }
    bool in_registers(const Inst& inst) const { return slot(inst).residency == Residency::kRegisters; }
    std::string lane() const { return loop_.vector == 1 ? "0" : "l"; }
    std::string lane_column() const { return loop_.vector == 1 ? "c" : "(c + l)"; }
    // "[i]" where a group holds several iterations' vectors.
    std::string entry() const { return group_ > 1 ? "[i]" : ""; }
    std::string entries() const { return group_ > 1 ? fmt::format("[{}]", group_size()) : ""; }
    // Of a serial loop the prelude may make groups of one.
    std::string group_size() const {
        return resident_ || group_ == 1 ? std::to_string(group_) : fmt::format("RJ_GROUP({})", group_);
    }
    std::string iteration() const {
        if (!several_groups()) return "i";
        return group_ == 1 ? kGroup : kOfGroup;
    }
    std::string own_iteration() const { return loop_.iterations > 1 ? iteration() : ""; }
    // Which of a resident loop's vectors this iteration's is, in an array of all of them.
    std::string resident_entry() const { return loop_.iterations > 1 ? fmt::format("[{}]", iteration()) : ""; }
    // Which of them a value is taken of.
    std::string turned_iteration(const Inst& inst) const {
        if (inst.turn == 0) return iteration();
        return fmt::format("({} + {}) % {}", iteration(), inst.turn, loop_.iterations);
    }

    // ---- before the loop -------------------------------------------------------------------------------------------

    // Loads at one address stand before the loop; loads whose address no lane's value decides, at its front.
    void find_accesses() {
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
            const bool whole = is_vector(inst) || inst.access.kind == Access::Kind::kSplat;
            addresses_[&inst] = scope_.address(inst, inside_, whole ? column(inst.access.anchor) : lane_column());
            const bool reads = inst.kind == InstKind::kLoad || inst.accumulate;
            if ((whole && reads) || is_single_load(inst)) front_.push_back(&inst);
        }
    }

    // Loads of which each vector needs one, as its place says (passes/conditions): one load, at an address that is
    // chosen. A rotary embedding of three position streams had sixteen loads in flight for two vectors, waited for in
    // seven turns for want of registers, where it needs eight.
    void find_chosen() {
        std::set<ValueId> within;
        for (const Inst& inst : std::views::reverse(loop_.body)) {
            if (!inst.chooses || within.contains(inst.id)) continue;
            std::vector<const Inst*> loads;
            if (!may_choose(inst, &loads)) continue;
            note_chosen(inst, &within);
            const Inst* first = loads.front();
            for (const Inst* load : loads) {
                if (load == first) continue;
                chosen_as_[load] = first;
                std::erase(front_, load);
            }
            chosen_by_[first] = &inst;
        }
    }

    // Of one type, each at the front and wherever its vector is, so that all have one guard.
    bool may_choose(const Inst& choice, std::vector<const Inst*>* loads) const {
        for (const std::size_t side : {1, 2}) {
            const Inst* made = made_here(choice.operands[side]);
            if (made->kind == InstKind::kMap) {
                if (!may_choose(*made, loads)) return false;
                continue;
            }
            const auto address = addresses_.find(made);
            const bool at_front = std::find(front_.begin(), front_.end(), made) != front_.end();
            if (!at_front || address == addresses_.end() || address->second.offset.empty()) return false;
            if (!address->second.inside.empty() || !address->second.aligned.empty()) return false;
            if (made->stage_offset_bytes >= 0 || scope_.is_fetched(*made) || copied_to(*made) != nullptr) return false;
            const auto is_read_only = [&](const Inst* load) { return scope_.kernel().is_read_only(tensor(*load)); };
            loads->push_back(made);
            if (is_read_only(made) != is_read_only(loads->front())) return false;
        }
        return true;
    }

    void note_chosen(const Inst& choice, std::set<ValueId>* within) const {
        for (const std::size_t side : {1, 2}) {
            const Inst* made = made_here(choice.operands[side]);
            if (made->kind != InstKind::kMap) continue;
            within->insert(made->id);
            note_chosen(*made, within);
        }
    }

    // What the conditions are made of, as the vector's first lane has it.
    void conditions_of_chosen() {
        std::set<ValueId> wanted;
        const auto want = [&](const auto& self, const Inst& select) -> void {
            wanted.insert(select.operands[0]);
            for (const std::size_t side : {1, 2}) {
                const Inst* made = made_here(select.operands[side]);
                if (made->kind == InstKind::kMap) self(self, *made);
            }
        };
        for (const auto& [load, choice] : chosen_by_) want(want, *choice);
        std::vector<const Inst*> before;
        for (const Inst& inst : std::views::reverse(loop_.body)) {
            if (!wanted.contains(inst.id)) continue;
            before.push_back(&inst);
            wanted.insert(inst.operands.begin(), inst.operands.end());
        }
        for (const Inst* inst : std::views::reverse(before)) define_for_vector(*inst);
    }

    void define_for_vector(const Inst& inst) {
        if (scope_.bind_inline(inst)) return;
        scope_.define(inst,
                      inst.kind == InstKind::kCoord ? scope_.coordinate(inst, inside_, "c") : scope_.computed(inst));
    }

    // Rows are chosen between before the column is added, where it is the same of all: once in 64 bits, not of each.
    GpuAddress chosen_address(const Inst& choice) const {
        const auto side = [&](std::size_t operand) {
            const Inst* made = made_here(choice.operands[operand]);
            if (made->kind == InstKind::kMap) return chosen_address(*made);
            return by_iteration(addresses_.at(made), loop_, scope_, iteration());
        };
        const GpuAddress a = side(1);
        const GpuAddress b = side(2);
        const std::string& condition = scope_.value(choice.operands[0]);
        if (a.offset != b.offset)
            return {.base = fmt::format("rj_chosen({}, {}, {})", condition, a.text(), b.text()),
                    .offset = {},
                    .inside = {}};
        return {
            .base = fmt::format("rj_chosen({}, {}, {})", condition, a.base, b.base), .offset = a.offset, .inside = {}};
    }

    // Where rows stay in their stages, the next fetch is after the row. A peeled row's ends were taken before the rest.
    bool fetches_after_loads() const {
        if (loop_.part == ColumnLoop::Part::kEnds) return false;
        return std::any_of(front_.begin(), front_.end(),
                           [&](const Inst* load) { return scope_.is_fetched(*load) && !stays_in_stage(*load); });
    }

    bool stays_in_stage(const Inst& load) const {
        return load.stage_offset_bytes >= 0 && scope_.kernel().schedule.residency == Residency::kStages;
    }

    // With one column per thread a gather is as good as a vector, unless a lane's value decides its address.
    bool is_single_load(const Inst& inst) const {
        if (inst.kind != InstKind::kLoad || loop_.vector != 1) return false;
        return std::none_of(inst.coords.begin(), inst.coords.end(), [&](const Coord& coord) {
            const std::vector<std::int32_t> data = coord.data_nodes();
            return std::any_of(data.begin(), data.end(), [&](std::int32_t id) { return inside_.values.contains(id); });
        });
    }

    // A resident loop that reads the row is one group of all its iterations. One that reads only what all rows share
    // (weights, from a cache) holds a few of its vectors at a time: a layer norm of 64 columns a thread took 168
    // registers with all of them at its front, which left one row on a multiprocessor.
    void choose_group() {
        std::int64_t bytes = 0;
        bool whole = std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
            return (inst.kind == InstKind::kKeep && in_registers(inst)) || is_turned_load(inst);
        });
        for (const Inst* load : front_) {
            bytes += static_cast<std::int64_t>(size_bytes(load->dtype)) * lanes_of(*load, loop_);
            whole = whole || (scope_.kernel().by_row(*load) && !stays_in_stage(*load));
        }
        resident_ = loop_.is_resident();
        const std::int64_t most =
            std::clamp(kBytesInFlightPerThread / std::max<std::int64_t>(bytes, 1), std::int64_t{1},
                       std::min(resident_ ? kMostOfShared : kMostInFlight, loop_.iterations));
        group_ = even_group(loop_.iterations, most);
        if (!resident_) return;
        while (loop_.iterations % group_ != 0) --group_;
        if (whole || front_.empty()) group_ = loop_.iterations;
    }

    // Iterations in groups: a resident loop that is one group needs no loop over them, and any other may be told to
    // take its iterations one by one.
    bool several_groups() const { return group_ < loop_.iterations || (!resident_ && group_ > 1); }

    // Divisions by a value of the row: what can be done once for all of them stands before the loop.
    void declare_divisors() {
        for (const Inst& inst : loop_.body) {
            if (inst.kind != InstKind::kMap || inst.op != Op::kDiv || inside_.values.contains(inst.operands[1]))
                continue;
            divisors_[&inst] = scope_.divisor(scope_.value(inst.operands[1]));
        }
    }

    // Words of what all lanes share stand before the loop too.
    void declare_splats() {
        for (const Inst& inst : loop_.body) {
            if (inst.packing != Packing::kComputed) continue;
            for (const ValueId operand : inst.operands) {
                if (scope_.dtype(operand) == inst.dtype) declare_splat(operand);
            }
        }
    }

    void declare_splat(ValueId value) {
        const Inst* made = made_here(value);
        const Dtype dtype = scope_.dtype(value);
        if (made == nullptr) made = constant(value);
        if (made != nullptr && made->kind == InstKind::kConst) {
            words_[value] = gpu_pair_literal(dtype, made->value);
        } else if (made == nullptr || made->kind == InstKind::kScalar || !inside_.values.contains(value)) {
            if (made != nullptr) scope_.bind_inline(*made);
            const std::string& one = scope_.value(value);
            words_[value] = scope_.row_name(is_identifier(one) ? one + "_both" : "both", "const unsigned",
                                            fmt::format("rj_pack_{0}({1}, {1})", name(dtype), one));
        }
    }

    // The constant of that value, wherever it stands in the kernel.
    const Inst* constant(ValueId value) const {
        const Inst* found = nullptr;
        each_inst(scope_.kernel(), [&](const Inst& inst) {
            if (inst.id == value && inst.kind == InstKind::kConst) found = &inst;
        });
        return found;
    }

    // What later loops read from registers is declared outside this one. A kept value that is a load's own vector stays
    // as it was loaded: packed, and never rounded again.
    void declare_kept() {
        for (const Inst& inst : loop_.body) {
            if (inst.kind != InstKind::kKeep || !in_registers(inst)) continue;
            RJ_CHECK(resident_, "emit gpu: {}: {} is kept in registers over a serial loop", scope_.kernel().name,
                     slot(inst).label);
            const Inst* load = kept_load(inst);
            if (load != nullptr && vectors_.contains(load)) {
                kept_[inst.index] = array_of(vectors_.at(load));
                continue;
            }
            if (!kept_.contains(inst.index)) {
                kept_[inst.index] =
                    scope_.names().fresh(load != nullptr ? tensor(*load).name + "_vec" : slot(inst).label);
                out_.line(fmt::format("{} {}{}{};", gpu_vec_type(slot(inst).dtype, loop_.vector), kept_[inst.index],
                                      entries(), load != nullptr ? initial() : ""),
                          "kept in registers");
            }
            const std::string name = kept_here(inst);
            declared_.insert(name + entry());
            if (load != nullptr) vectors_[load] = name + entry();
        }
    }

    // What a slot's vector of this row is called, where it is one of a window of rows or not.
    std::string kept_here(const Inst& keep) const {
        const std::string& name = kept_.at(keep.index);
        return slot(keep).rows_back > 0 ? window_entry(name, 0) : name;
    }

    // The array that an iteration's vector is an entry of.
    std::string array_of(const std::string& vec) const { return vec.substr(0, vec.size() - entry().size()); }

    const Inst* kept_load(const Inst& keep) const {
        for (const Inst* load : front_) {
            const bool whole = is_vector(*load) ? load->access.lanes.empty() : loop_.vector == 1;
            if (load->id == keep.operands[0] && whole && load->dtype == slot(keep).dtype) return load;
        }
        return nullptr;
    }

    // Pairs are dear to combine, vector by vector: what a thread has of a resident row they take at once, but for the
    // vectors of which only some threads have one. Of a row in its stage as many registers would have to hold it.
    void declare_terms() {
        const std::int64_t whole = scope_.kernel().whole_iterations(loop_);
        if (!resident_ || whole < 2 || scope_.kernel().schedule.residency == Residency::kStages) return;
        for (const Inst& inst : loop_.body) {
            if (inst.kind != InstKind::kAccumulate || components(scope_.accumulator(inst).monoid) != 2) continue;
            const Accumulator& accumulator = scope_.accumulator(inst);
            terms_[&inst] = scope_.names().fresh(accumulator.label + "_terms");
            out_.line(
                fmt::format("{} {}[{}];", gpu_value_type(accumulator.dtype), terms_[&inst], whole * loop_.vector));
        }
    }

    // The greatest or the least of narrow elements, of all the thread's vectors.
    void declare_folds() {
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

    void name_vectors() {
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
    const Inst& not_turned(const Inst& turned) const {
        const auto found = std::find_if(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
            return inst.kind == InstKind::kLoad && inst.turn == 0 && inst.index == turned.index &&
                   inst.coords == turned.coords;
        });
        RJ_CHECK(found != loop_.body.end() && group_ == loop_.iterations, "emit gpu: {}: {} is turned, and not loaded",
                 scope_.kernel().name, tensor(turned).name);
        return *found;
    }

    // ---- a group ---------------------------------------------------------------------------------------------------

    void single() {
        out_.open("");
        declare_column();
        declare_offers();
        const bool guarded = open_guard();
        loads();
        if (awaits_singly()) await_loads();
        compute();
        if (guarded) out_.close();
        offer();
        out_.close();
    }

    // A loop of one iteration without a reduction, whose loads are those that the row has.
    bool awaits_singly() const {
        return scope_.kernel().loads_together != LoadsTogether::kNot && loop_.iterations == 1 &&
               scope_.kernel().schedule.family == Family::kElementwise;
    }

    void grouped() {
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
        if (guarded) out_.close();
        offer();
        out_.close();
    }

    // Nothing is computed before the loads from memory are on their way.
    void await_loads() {
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
    std::string initial() const {
        const bool all = scope_.kernel().loads_together >= LoadsTogether::kAll;
        return all && !has_vector().empty() ? " = {}" : "";
    }

    void open_iterations(bool needs_column) {
        out_.line("#pragma unroll");
        out_.open(fmt::format("for (int i = 0; i < {}; ++i)", group_size()));
        if (needs_column) declare_column();
    }

    // Whether anything but the loads at the front asks where in the row it is.
    bool computing_needs_column() const {
        if (loop_.tail != ColumnLoop::Tail::kNone) return true;
        return std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
            if (is_slot(inst)) return !in_registers(inst);
            if (inst.kind == InstKind::kLoad) return !is_uniform(inst) && !vectors_.contains(&inst);
            return inst.kind == InstKind::kStore || inst.kind == InstKind::kCoord;
        });
    }

    void declare_column() {
        out_.line(fmt::format("const int c = {};", column_of(loop_, scope_, loop_.iterations > 1 ? iteration() : "")));
        if (divides_column()) out_.line("RJ_NOT_NEGATIVE(c);");
    }

    // Rotary embedding of 32 heads took 56 registers with signed remainders, and 40 without.
    bool divides_column() const {
        return std::any_of(addresses_.begin(), addresses_.end(),
                           [](const auto& address) { return takes_remainder(address.second); });
    }

    // Under which this thread has a vector in an iteration; "" where each always does.
    std::string has_vector() const {
        std::vector<std::string> conditions;
        if (!resident_ && loop_.iterations % group_ != 0)
            conditions.push_back(fmt::format("first + i < {}", loop_.iterations));
        if (loop_.tail == ColumnLoop::Tail::kVector)
            conditions.push_back(inside_row(loop_, scope_, resident_ ? iteration() : ""));
        return fmt::format("{}", fmt::join(conditions, " && "));
    }

    bool open_guard() {
        const std::string condition = has_vector();
        if (condition.empty()) return false;
        out_.open(guard(condition));
        return true;
    }

    // What the lanes of a warp keep together they are offered together, those that have no vector too: its elements are
    // gathered inside the guard, and stand before it.
    bool is_offer(const Inst& inst) const {
        return inst.kind == InstKind::kAccumulate && scope_.accumulator(inst).monoid == Monoid::kGreatest;
    }

    void declare_offers() {
        for (const Inst& inst : loop_.body) {
            if (!is_offer(inst)) continue;
            const Accumulator& accumulator = scope_.accumulator(inst);
            arrays_[&inst] = lane_array(accumulator.label, accumulator.dtype);
            factors_[&inst] = lane_array(accumulator.label + "_places", Dtype::kI32);
        }
    }

    void offer() {
        const std::string condition = has_vector();
        for (const Inst& inst : loop_.body) {
            if (!is_offer(inst)) continue;
            out_.line(fmt::format("{}.offer({}, {}, {});", scope_.state(inst.index),
                                  condition.empty() ? "true" : condition, arrays_.at(&inst), factors_.at(&inst)));
        }
    }

    void loads() {
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
            out_.line(fmt::format("{}{} = {};", declared_.contains(name) ? "" : type, name, loaded(*load)),
                      load->comment);
        }
        if (!copies) return;
        out_.line("rj_copies_issued();");
        out_.line(fmt::format("rj_wait_for_copies<{}>();", scope_.kernel().schedule.ahead), "those of rows before");
    }

    std::string loaded(const Inst& load) const {
        const int lanes = lanes_of(load, loop_);
        if (load.stage_offset_bytes >= 0) return staged(load.stage_offset_bytes, iteration(), load.dtype, lanes);
        if (scope_.is_fetched(load)) return scope_.fetched(load);
        if (const auto choice = chosen_by_.find(&load); choice != chosen_by_.end())
            return scope_.load(load, chosen_address(*choice->second), lanes);
        return scope_.load(load, by_iteration(addresses_.at(&load), loop_, scope_, iteration()), lanes);
    }

    // What lies in the row's stage for an iteration.
    std::string staged(std::int64_t offset_bytes, const std::string& iteration, Dtype dtype, int lanes) const {
        const std::int64_t bytes = lanes * static_cast<std::int64_t>(size_bytes(dtype));
        return fmt::format("rj_shared_load_vec<{}>({})", gpu_vec_type(dtype, lanes),
                           scope_.staged(offset_bytes, loop_.iterations > 1 ? in_parentheses(iteration) : "", bytes));
    }

    // ---- lanes -----------------------------------------------------------------------------------------------------

    void compute() {
        declare_lane_arrays();
        declare_uniforms();
        declare_permutations();
        take_kept();
        conditions();
        const std::vector<std::string> matches = lane_matches();
        const std::string lanes = matches.empty() ? "" : scope_.names().fresh("lanes");
        if (!matches.empty()) {
            one_matches_ = scope_.names().fresh("one_matches");
            out_.open(fmt::format("const auto {} = [&](auto {})", lanes, one_matches_));
        }
        const std::vector<const Inst*> test = few_pass();
        if (!test.empty()) open_passing(test);
        packs_lanes() ? pairs() : each_lane();
        if (!matches.empty()) {
            for (const Inst& inst : loop_.body) {
                if (adds_match(inst))
                    out_.line(
                        fmt::format("if ({}) {}.add({});", one_matches_, scope_.state(inst.index), arrays_.at(&inst)));
            }
            out_.close(";");
            out_.line(fmt::format("{0} ? {1}(rj_constant<true>()) : {1}(rj_constant<false>());",
                                  fmt::join(matches, " || "), lanes));
        }
        for (const Inst& inst : loop_.body) {
            if (matches.empty() || !adds_match(inst)) leave(inst);
        }
        if (!test.empty()) out_.close();
    }

    // None of rows that share a block, which are too narrow for their columns to be few.
    std::vector<const Inst*> few_pass() const {
        if (loop_.vector == 1 || scope_.kernel().schedule.rows_per_block > 1) return {};
        return passing_test(scope_.kernel(), loop_);
    }

    // The vector of which what is tested rises with each element, where it is of one: then whether any lane passes is
    // whether the greatest element does, or the least.
    const Inst* rises_with(const std::vector<const Inst*>& test) const {
        if (test.empty()) return nullptr;
        const Inst& element = *test.front();
        const bool is_vector_of_lanes =
            element.kind == InstKind::kKept || (element.kind == InstKind::kLoad && lanes_of(element, loop_) > 1);
        // What is compared of f32 in registers takes the registers of the elements, in all steps, and a comparison a
        // lane is as good: sparsemax of 4096 f32 columns takes 0.144 ms so, 0.151 with the greatest of four (H200).
        const bool f32_elsewhere =
            element.dtype == Dtype::kF32 && element.kind == InstKind::kKept && !in_registers(element);
        if (!is_vector_of_lanes || !(is_narrow(element.dtype) || f32_elsewhere)) return nullptr;
        for (std::size_t i = 1; i < test.size(); ++i) {
            const Inst& inst = *test[i];
            const bool moves = inst.kind == InstKind::kMap && (inst.op == Op::kAdd || inst.op == Op::kSub);
            const bool rises = inst.kind == InstKind::kCast || moves || i + 1 == test.size();
            const bool alone = inst.operands.size() < 2 || !inside_.values.contains(inst.operands[1]);
            if (!rises || !alone || !is_float(scope_.dtype(inst.operands[0])) || inst.operands[0] != test[i - 1]->id)
                return nullptr;
        }
        return &element;
    }

    static bool asks_the_greatest(const Inst& asked) { return asked.op == Op::kGt || asked.op == Op::kGe; }

    // What is compared of the vector's greatest element, or its least.
    std::string tested_of(const std::vector<const Inst*>& test) {
        const Inst& element = *test.front();
        const bool greatest = asks_the_greatest(*test.back());
        const std::string name = scope_.names().fresh(element.label + (greatest ? "_greatest" : "_least"));
        out_.line(fmt::format("const float {} = {}({});", name, greatest ? "rj_greatest_of" : "rj_least_of",
                              vectors_.at(&element)));
        scope_.bind(element.id, name);
        for (std::size_t i = 1; i + 1 < test.size(); ++i) lane_inst(*test[i]);
        return scope_.value(test.back()->operands[0]);
    }

    // Whether one of the lanes passes; a NaN, which would hide another element, does.
    std::string one_passes(const Inst& asked, const std::string& tested) const {
        constexpr auto kFails = [](Op op) {
            return op == Op::kGt ? "<=" : op == Op::kGe ? "<" : op == Op::kLt ? ">=" : ">";
        };
        return fmt::format("!({} {} {})", tested, kFails(asked.op), scope_.value(asked.operands[1]));
    }

    void open_passing(const std::vector<const Inst*>& test) {
        if (const Inst* element = rises_with(test); element != nullptr && vectors_.contains(element)) {
            const std::string tested =
                scope_.is_tested(*test.back()) ? scope_.tested(*test.back()) + resident_entry() : tested_of(test);
            out_.open(fmt::format("if ({})", one_passes(*test.back(), tested)), "one of the vector's columns");
            const std::string inside = scope_.names().fresh(element->label + "_looked_into");
            out_.line(fmt::format("const auto {} = rj_looked_into({});", inside, vectors_.at(element)));
            vectors_[element] = inside;
            return;
        }
        const std::string passes = scope_.names().fresh("passes");
        out_.line(fmt::format("bool {} = false;", passes));
        out_.line("#pragma unroll");
        out_.open(fmt::format("for (int l = 0; l < {}; ++l)", loop_.vector));
        for (const Inst* inst : test) lane_inst(*inst);
        out_.line(fmt::format("{} |= {};", passes, scope_.value(test.back()->id)));
        out_.close();
        out_.open(fmt::format("if ({})", passes), "one of the vector's columns");
    }

    void each_lane() {
        if (loop_.vector > 1) {
            out_.line("#pragma unroll");
            out_.open(fmt::format("for (int l = 0; l < {}; ++l)", loop_.vector));
        }
        lane_divisors_.clear();
        for (const Inst& inst : loop_.body) {
            if (!before_lanes_.contains(&inst)) lane_inst(inst);
        }
        if (loop_.vector > 1) out_.close();
    }

    // Where an instruction asks whether a lane's column is a number of the row, as a loss asks for its target: which of
    // its operands is the column. One vector of a row has that column; in all others a lane saves the comparison and
    // what it selects, three of ten instructions of a cross-entropy's gradient.
    std::optional<std::size_t> compared_column(const Inst& inst) const {
        if (loop_.vector == 1 || inst.kind != InstKind::kMap || inst.op != Op::kEq) return std::nullopt;
        for (const std::size_t column : {0, 1}) {
            const Inst* made = made_here(inst.operands[column]);
            if (made == nullptr || made->kind != InstKind::kCoord || lane_step(made->id) != 1) continue;
            if (!inside_.values.contains(inst.operands[1 - column])) return column;
        }
        return std::nullopt;
    }

    // Of a sum of what is zero but where such a comparison holds, as the target's logit: a vector that has no such lane
    // adds nothing. A sum of zeros is +0, to which +0 adds nothing.
    bool adds_match(const Inst& inst) const {
        if (inst.kind != InstKind::kAccumulate || !arrays_.contains(&inst)) return false;
        const Inst* asked = chooses_or_zero(scope_.kernel(), loop_, inst);
        return asked != nullptr && compared_column(*asked);
    }

    // For each of those whether a lane of this vector is it.
    std::vector<std::string> lane_matches() const {
        std::vector<std::string> matches;
        for (const Inst& inst : loop_.body) {
            const std::optional<std::size_t> column = compared_column(inst);
            if (!column) continue;
            const std::string first = scope_.coordinate(*made_here(inst.operands[*column]), inside_, "c");
            const std::string match = fmt::format("static_cast<unsigned>({}) - static_cast<unsigned>({}) < {}u",
                                                  scope_.value(inst.operands[1 - *column]), first, loop_.vector);
            if (std::find(matches.begin(), matches.end(), match) == matches.end()) matches.push_back(match);
        }
        return matches;
    }

    // Conditions that all lanes share stand before them, with what they are made of as the first lane has it.
    void conditions() {
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

    // ---- pairs of lanes ----------------------------------------------------------------------------------------

    bool packs_lanes() const {
        return std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
            return inst.packing != Packing::kNone || packed_outs_.contains(&inst);
        });
    }

    void pairs() {
        const PairOrder order = order_pairs(loop_, [&](const Inst& inst) { return form(inst); });
        out_.line("#pragma unroll");
        out_.open(fmt::format("for (int pair = 0; pair < {}; ++pair)", loop_.vector / 2));
        for (const PairTurn& turn : order.turns) {
            for (const Inst* inst : turn.words) word_inst(*inst);
            if (!turn.lanes.empty()) lanes_of_pair(turn.lanes, order.crossing);
        }
        out_.close();
    }

    // What a word's select may read, for both lanes at once.
    static bool is_condition(const Inst& inst) { return inst.dtype == Dtype::kBool; }

    PairForm form(const Inst& inst) const {
        if (before_lanes_.contains(&inst)) return PairForm::kBefore;
        if (inst.packing == Packing::kComputed || packed_outs_.contains(&inst)) return PairForm::kOnWords;
        switch (inst.kind) {
            case InstKind::kLoad:
                if (is_uniform(inst)) return PairForm::kBefore;
                return vectors_.contains(&inst) && !is_condition(inst) ? PairForm::kAnywhere : PairForm::kLanes;
            case InstKind::kKept: return is_condition(inst) ? PairForm::kLanes : PairForm::kAnywhere;
            case InstKind::kKeep:
            case InstKind::kAccumulate: return arrays_.contains(&inst) ? PairForm::kLanes : PairForm::kBefore;
            case InstKind::kCast: {
                const bool widens = inst.dtype == Dtype::kF32 && is_narrow(scope_.dtype(inst.operands[0]));
                return widens ? PairForm::kAnywhere : PairForm::kLanes;
            }
            case InstKind::kConst:
            case InstKind::kScalar:
            case InstKind::kExtent:
            case InstKind::kCoord: return PairForm::kAnywhere;
            default: return PairForm::kLanes;
        }
    }

    void word_inst(const Inst& inst) {
        if (const auto packed = packed_outs_.find(&inst); packed != packed_outs_.end())
            return out_.line(fmt::format("{}.words[pair] = {};", packed->second, word(inst.operands[0])), inst.comment);
        const auto operand = [&](std::size_t i) {
            if (i >= inst.operands.size()) return std::string();
            const ValueId id = inst.operands[i];
            return scope_.dtype(id) == inst.dtype ? word(id) : conditions_of_pair(id);
        };
        words_[inst.id] = scope_.names().fresh(inst.label);
        out_.line(fmt::format("const unsigned {} = {};", words_.at(inst.id),
                              fmt::format(fmt::runtime(info(inst.op).packed), operand(0), operand(1), operand(2),
                                          name(inst.dtype))),
                  inst.comment);
    }

    // Both lanes of a value, by elements of its vector or by the name of its word.
    std::string word(ValueId value) const {
        if (const auto named = words_.find(value); named != words_.end()) return named->second;
        const Inst* made = made_here(value);
        RJ_CHECK(made != nullptr && vectors_.contains(made), "emit gpu: {}: %{} is in no word", scope_.kernel().name,
                 value);
        const std::string& vec = vectors_.at(made);
        if (made->kind == InstKind::kLoad && lanes_of(*made, loop_) == 1)
            return fmt::format("rj_both({}.words[0])", vec);
        const std::vector<int>& order = made->access.lanes;
        if (order.empty()) return vec + ".words[pair]";
        if (!flips(order)) return fmt::format("rj_two({0}, {1}[2 * pair], {1}[2 * pair + 1])", vec, orders_.at(made));
        const std::string there =
            order[0] > 1 ? fmt::format("{}.words[pair ^ {}]", vec, order[0] / 2) : vec + ".words[pair]";
        return order[0] % 2 == 0 ? there : fmt::format("rj_swapped({})", there);
    }

    std::string conditions_of_pair(ValueId condition) {
        if (const Inst* made = made_here(condition); made != nullptr && form(*made) == PairForm::kAnywhere)
            RJ_CHECK(scope_.bind_inline(*made), "emit gpu: {}: {} is in no place", scope_.kernel().name, made->label);
        const auto each = crossing_.find(condition);
        return each == crossing_.end() ? scope_.value(condition) : fmt::format("{0}[0], {0}[1]", each->second);
    }

    // The statements of one turn for each of the two lanes, and the words of what they round.
    void lanes_of_pair(const std::vector<const Inst*>& lanes, const std::set<ValueId>& crossing) {
        std::map<const Inst*, std::string> rounded;
        for (const Inst* inst : lanes) {
            const bool rounds = inst->packing == Packing::kRounded;
            if (!rounds && !crossing.contains(inst->id)) continue;
            const std::string array = scope_.names().fresh(inst->label + "_pair");
            out_.line(fmt::format("{} {}[2];", gpu_value_type(inst->dtype), array));
            scope_.set_place(inst->id, array + "[l % 2]");
            (rounds ? rounded[inst] : crossing_[inst->id]) = array;
        }
        out_.line("#pragma unroll");
        out_.open("for (int l = 2 * pair; l < 2 * pair + 2; ++l)");
        in_lanes_.clear();
        lane_divisors_.clear();
        for (const Inst* inst : lanes) {
            name_operands(*inst);
            lane_inst(*inst);
        }
        out_.close();
        for (const Inst* inst : lanes) {
            if (inst->packing != Packing::kRounded) continue;
            words_[inst->id] = scope_.names().fresh(inst->label);
            out_.line(fmt::format("const unsigned {0} = rj_pack_{1}({2}[0], {2}[1]);", words_.at(inst->id),
                                  name(inst->dtype), rounded.at(inst)));
        }
    }

    // Before a lane's statement, what it reads of words, vectors and coordinates, unless this turn has it already.
    void name_operands(const Inst& inst) {
        each_use(inst, [&](ValueId value) { name_operand(value); });
    }

    void name_operand(ValueId value) {
        const Inst* made = made_here(value);
        if (made == nullptr || !in_lanes_.insert(value).second) return;
        if (made->packing != Packing::kNone) {
            const std::string lane_name = scope_.names().fresh(made->label + "_lane");
            out_.line(fmt::format("const float {} = rj_half<{}>({}, l % 2);", lane_name, gpu_storage_type(made->dtype),
                                  words_.at(value)));
            return scope_.bind(value, lane_name);
        }
        if (form(*made) != PairForm::kAnywhere) return;
        name_operands(*made);
        lane_inst(*made);
    }

    // ---- each lane ---------------------------------------------------------------------------------------------

    // Lanes that go to memory, to a slot or into an accumulator are gathered in an array and leave as one vector.
    void declare_lane_arrays() {
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
            } else if (inst.kind == InstKind::kKeep && kept_load(inst) == nullptr) {
                label = slot(inst).label;
                dtype = slot(inst).dtype;
            } else {
                continue;
            }
            arrays_[&inst] = lane_array(label, dtype);
            if (inst.kind == InstKind::kAccumulate && inst.operands.size() == 2)
                factors_[&inst] = lane_array(label, dtype);
        }
    }

    // Whether a store or a slot takes a value as words that there are without packing its lanes.
    bool leaves_in_words(const Inst& inst) const {
        const bool keeps = inst.kind == InstKind::kKeep && kept_load(inst) == nullptr;
        const bool stores =
            inst.kind == InstKind::kStore && is_vector(inst) && inst.access.lanes.empty() && !inst.accumulate;
        if ((!keeps && !stores) || loop_.vector % 2 != 0) return false;
        const Dtype dtype = keeps ? slot(inst).dtype : inst.dtype;
        const Inst* made = made_here(inst.operands[0]);
        if (made == nullptr || made->dtype != dtype || !is_narrow(dtype)) return false;
        return made->packing != Packing::kNone || made->kind == InstKind::kKept || vectors_.contains(made);
    }

    std::string declare_packed(const Inst& out) {
        const bool keeps = out.kind == InstKind::kKeep;
        std::string name = scope_.names().fresh((keeps ? slot(out).label : tensor(out).name) + "_packed");
        out_.line(fmt::format("{} {};", gpu_vec_type(keeps ? slot(out).dtype : out.dtype, loop_.vector), name));
        return name;
    }

    // The vector of bf16 or f16 whose greatest or least is taken as it lies in memory, two elements an instruction.
    const std::string* packed_operand(const Inst& accumulate) const {
        const Inst* packed = packed_source(accumulate);
        const auto vector = packed == nullptr ? vectors_.end() : vectors_.find(packed);
        return vector != vectors_.end() ? &vector->second : nullptr;
    }

    // What loaded or kept the vectors of such elements.
    const Inst* packed_source(const Inst& accumulate) const {
        const Monoid monoid = scope_.accumulator(accumulate).monoid;
        if ((monoid != Monoid::kMax && monoid != Monoid::kMin) || loop_.vector == 1) return nullptr;
        const Inst* made = made_here(accumulate.operands[0]);
        if (made != nullptr && takes_sizes(accumulate)) made = made_here(made->operands[0]);
        if (made != nullptr && made->kind == InstKind::kCast) made = made_here(made->operands[0]);
        if (made == nullptr || !is_narrow(made->dtype) || elements_.contains(made)) return nullptr;
        const bool whole = made->kind == InstKind::kKept || (is_vector(*made) && lanes_of(*made, loop_) > 1);
        return whole ? made : nullptr;
    }

    // Whether it is of the elements' sizes: their signs are one mask a word.
    bool takes_sizes(const Inst& accumulate) const {
        const Inst* made = made_here(accumulate.operands[0]);
        return made != nullptr && made->kind == InstKind::kMap && made->op == Op::kAbs;
    }

    const Inst* made_here(ValueId value) const {
        const auto found =
            std::find_if(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) { return inst.id == value; });
        return found == loop_.body.end() ? nullptr : &*found;
    }

    std::string lane_array(const std::string& label, Dtype dtype) {
        std::string name = scope_.names().fresh(label + "_lanes");
        out_.line(fmt::format("{} {}[{}];", gpu_value_type(dtype), name, loop_.vector));
        return name;
    }

    // Random numbers of one seed and offset for all lanes: neighbours share the work of four.
    bool shares_work(const Inst& inst) const {
        if (inst.kind != InstKind::kMap || inst.op != Op::kUniform || loop_.vector == 1) return false;
        return !inside_.values.contains(inst.operands[0]) && !inside_.values.contains(inst.operands[1]);
    }

    void declare_uniforms() {
        for (const Inst& inst : loop_.body) {
            if (!shares_work(inst)) continue;
            uniforms_[&inst] = scope_.names().fresh(inst.label + "_lanes");
            out_.line(is_run(inst) ? fmt::format("rj_uniform_run<{}> {};", loop_.vector, uniforms_[&inst])
                                   : fmt::format("rj_uniforms {};", uniforms_[&inst]));
        }
    }

    // Once for all vectors, which words pass what random numbers are compared with.
    void declare_fractions() {
        for (const Inst& inst : loop_.body) {
            const std::optional<std::size_t> random = compared_random(inst);
            if (!random) continue;
            const std::string limit = limit_of(inst, *random);
            const bool lies_beyond = asks_beyond(inst, *random);
            const auto [bound, is_new] = fractions_.try_emplace({limit, lies_beyond});
            if (!is_new) continue;
            bound->second = scope_.names().fresh("fractions");
            out_.line(
                fmt::format("const rj_fractions {} = rj_fractions_from({}, {});", bound->second, limit, lies_beyond));
        }
    }

    // Where an instruction compares a random number with a number of the row, as a dropout's mask does: which of its
    // operands is the random one, of which it then asks the word.
    std::optional<std::size_t> compared_random(const Inst& inst) const {
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

    std::string limit_of(const Inst& inst, std::size_t random) const {
        const ValueId limit = inst.operands[1 - random];
        const Inst* number = constant(limit);
        return number != nullptr ? gpu_literal(number->dtype, number->value) : scope_.value(limit);
    }

    // Such a condition is that the fraction is at least the limit, or greater than it, or that it is not.
    static bool asks_beyond(const Inst& inst, std::size_t random) {
        return random == 0 ? inst.op == Op::kGt || inst.op == Op::kLe : inst.op == Op::kLt || inst.op == Op::kGe;
    }
    static bool asks_above(const Inst& inst, std::size_t random) {
        const bool is_greater = inst.op == Op::kGt || inst.op == Op::kGe;
        return random == 0 ? is_greater : !is_greater;
    }

    // Whether the number itself is wanted, and not only such conditions of it.
    bool is_read(const Inst& uniform) const {
        return std::any_of(loop_.body.begin(), loop_.body.end(), [&](const Inst& inst) {
            bool uses = false;
            each_use(inst, [&](ValueId value) { uses = uses || value == uniform.id; });
            return uses && !compared_random(inst);
        });
    }

    // Whether the positions of a vector's lanes follow one another.
    bool is_run(const Inst& uniform) const { return loop_.vector % 4 == 0 && lane_step(uniform.operands[2]) == 1; }

    // How much more an integer is in each lane than in the one before, if that is one number.
    std::optional<std::int64_t> lane_step(ValueId value) const {
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
    void declare_permutations() {
        for (const Inst& inst : loop_.body) {
            const std::vector<int>& order = inst.access.lanes;
            if (!is_vector(inst) || order.empty()) continue;
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

    std::string element(const Inst& inst) const {
        const auto found = elements_.find(&inst);
        return found == elements_.end() ? lane() : found->second;
    }

    std::string shared_offset(const Slot& slot) const {
        // Each block keeps its own columns, one round behind the other.
        const bool own = scope_.kernel().schedule.column_blocks > 1 || loop_.is_peeled();
        const std::string column = own ? in_parentheses(first_lane(loop_, vector_of(scope_, own_iteration()))) : "c";
        std::string text = fmt::format("{} * {}", column, size_bytes(slot.dtype));
        if (slot.shared_offset_bytes > 0) text = fmt::format("{} + {}", slot.shared_offset_bytes, text);
        return scope_.rows() > 1 ? "row_shared + " + text : text;
    }

    void take_kept() {
        for (const Inst& inst : loop_.body) {
            if (inst.kind != InstKind::kKept) continue;
            vectors_[&inst] = scope_.names().fresh(slot(inst).label);
            const std::string type = gpu_vec_type(slot(inst).dtype, loop_.vector);
            out_.line(fmt::format("const {} {} = {};", type, vectors_[&inst], kept_vector(inst, type)));
        }
    }

    // Where in shared memory the thread's vector of a row so many back is, of a window that lies there.
    std::string ring_place(const Slot& window, int rows_back) const {
        const std::string row = rows_back > 0 ? fmt::format("(walked - {})", rows_back) : "walked";
        return place_in_ring(window, loop_, scope_, fmt::format("({} & {})", row, window.ring_rows() - 1));
    }

    // The slot that a load goes to by an asynchronous copy, and to nothing else.
    const Slot* copied_to(const Inst& load) const {
        if (load.kind != InstKind::kLoad || !is_vector(load) || !load.access.lanes.empty()) return nullptr;
        for (const Inst& inst : loop_.body) {
            if (inst.kind == InstKind::kKeep && inst.operands[0] == load.id && is_ring(inst)) return &slot(inst);
        }
        return nullptr;
    }

    bool is_ring(const Inst& keep) const { return slot(keep).rows_back > 0 && !in_registers(keep); }

    // Outside of its tensor a row is zeros.
    void copy(const Inst& load, const Slot& window) {
        const GpuAddress& at = addresses_.at(&load);
        const std::string place = ring_place(window, 0);
        const std::string copies =
            fmt::format("rj_copy_ahead<{}>({}, {});", loop_.vector * size_bytes(window.dtype), place, at.text());
        if (at.inside.empty()) return out_.line(copies);
        out_.line(fmt::format("if ({}) {}", at.inside, copies));
        out_.line(fmt::format("else rj_shared_store_vec({}, rj_zeros<{}, {}>());", place,
                              gpu_storage_type(window.dtype), loop_.vector));
    }

    std::string kept_vector(const Inst& kept, const std::string& type) const {
        const Slot& from = slot(kept);
        if (is_ring(kept)) return fmt::format("rj_shared_load_vec<{}>({})", type, ring_place(from, kept.rows_back));
        switch (from.residency) {
            case Residency::kRegisters: {
                if (from.rows_back > 0) return window_entry(kept_.at(kept.index), kept.rows_back);
                const std::string entry = loop_.iterations > 1 ? fmt::format("[{}]", turned_iteration(kept)) : "";
                return fmt::format("rj_kept({}{})", kept_.at(kept.index), entry);
            }
            case Residency::kStages:
                return staged(from.shared_offset_bytes, turned_iteration(kept), from.dtype, loop_.vector);
            default: return fmt::format("rj_shared_load_vec<{}>({})", type, shared_offset(from));
        }
    }

    void lane_inst(const Inst& inst) {
        if (scope_.bind_inline(inst)) return;
        if (compared_column(inst))
            return scope_.define(inst, fmt::format("{} && {}", one_matches_, scope_.computed(inst)));
        switch (inst.kind) {
            case InstKind::kLoad: return lane_load(inst);
            case InstKind::kKept: {
                return scope_.define(inst, fmt::format("rj_get({}, {})", vectors_.at(&inst), lane()));
            }
            case InstKind::kCoord: return scope_.define(inst, scope_.coordinate(inst, inside_, lane_column()));
            case InstKind::kStore:
            case InstKind::kKeep:
            case InstKind::kAccumulate: return lane_out(inst);
            case InstKind::kCarry: return scope_.carry(inst, carried_place(inst));
            case InstKind::kCarried:
                return scope_.define(inst, fmt::format("{}[{}]", scope_.carried(inst.index), carried_place(inst)));
            default: break;
        }
        if (const auto uniforms = uniforms_.find(&inst); uniforms != uniforms_.end()) {
            const bool reads = !is_run(inst) || is_read(inst);
            const std::string asked = fmt::format("{}.{}({}, {}, {}{})", uniforms->second, reads ? "at" : "ask",
                                                  scope_.value(inst.operands[0]), scope_.value(inst.operands[1]),
                                                  scope_.value(inst.operands[2]), is_run(inst) ? ", l" : "");
            return reads ? scope_.define(inst, asked) : out_.line(asked + ";", inst.comment);
        }
        if (const std::optional<std::size_t> random = compared_random(inst)) {
            const std::string& bound = fractions_.at({limit_of(inst, *random), asks_beyond(inst, *random)});
            return scope_.define(
                inst, fmt::format("{}.{}({}.words[l])", bound, asks_above(inst, *random) ? "contain" : "lack",
                                  uniforms_.at(made_here(inst.operands[*random]))));
        }
        if (const std::optional<WholeByte> byte = whole_byte(inst)) return scope_.define(inst, text_of(inst, *byte));
        const auto divisor = divisors_.find(&inst);
        if (divisor == divisors_.end()) return scope_.define(inst, scope_.computed(inst, shared_divisor(inst)));
        scope_.define(inst, scope_.computed(inst, divisor->second));
    }

    // A float on its way to eight bits: rounded to a whole number or cut to one, between bounds that are whole numbers
    // themselves.
    struct WholeByte {
        ValueId value = -1;
        bool rounds = false;
        int least = -128;
        int most = 127;
    };

    // Its conversion rounds, saturates and makes NaN 0, and a store's packing saturates once more; bounds around 0 do
    // nothing to a NaN's. A quantization of bf16 rounded, bounded twice, converted and bounded twice more, of what only
    // half of the lanes do in a cycle or an eighth: 22 instructions an element. Not where lanes are computed by pairs,
    // in turns that do not see each other's values.
    std::optional<WholeByte> whole_byte(const Inst& inst) const {
        if (inst.kind != InstKind::kCast || inst.dtype != Dtype::kI8 || packs_lanes()) return std::nullopt;
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

    std::string text_of(const Inst& cast, const WholeByte& byte) const {
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

    // The number of at least 1 that several of a lane's quotients are by, prepared before the first of them; "" where
    // it is none. A logistic function's derivative has three: a convolution's backward takes 24 instructions of 580
    // less.
    std::string shared_divisor(const Inst& inst) {
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
    std::string carried_place(const Inst& inst) const {
        RJ_CHECK(resident_, "emit gpu: {}: {} is carried over a serial loop", scope_.kernel().name,
                 scope_.carried(inst.index));
        if (loop_.iterations == 1) return lane();
        if (loop_.vector == 1) return iteration();
        return fmt::format("{} * {} + l", in_parentheses(iteration()), loop_.vector);
    }

    void lane_load(const Inst& inst) {
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

    void lane_out(const Inst& inst) {
        const auto array = arrays_.find(&inst);
        if (array == arrays_.end()) {
            if (inst.kind == InstKind::kStore) scope_.store_one(inst, addresses_.at(&inst), live());
            return;
        }
        std::string stored = scope_.value(inst.operands[0]);
        if (inst.accumulate) stored = fmt::format("rj_get({}, {}) + {}", vectors_.at(&inst), element(inst), stored);
        out_.line(fmt::format("{}[{}] = {};", array->second, element(inst), stored), inst.comment);
        if (const auto factor = factors_.find(&inst); factor != factors_.end())
            out_.line(fmt::format("{}[{}] = {};", factor->second, element(inst), scope_.value(inst.operands[1])));
    }

    std::vector<std::string> live() const {
        return scope_.live().empty() ? std::vector<std::string>{} : std::vector<std::string>{scope_.live()};
    }

    // Where NVRTC was seen to store a vector's words one by one: at an address that takes a remainder, of a row that is
    // not in registers, and of one of several tensors that a kernel without reductions stores.
    bool stores_whole(const GpuAddress& at) const {
        const Schedule& schedule = scope_.kernel().schedule;
        const auto stores = std::count_if(loop_.body.begin(), loop_.body.end(),
                                          [](const Inst& inst) { return inst.kind == InstKind::kStore; });
        return takes_remainder(at) || schedule.residency != Residency::kRegisters ||
               (schedule.family == Family::kElementwise && stores > 1);
    }

    // After the lanes: what leaves as a vector.
    void leave(const Inst& inst) {
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

    void fold(const Inst& accumulate, const std::string& packed) {
        out_.line(folds_.contains(&accumulate)
                      ? fmt::format("{}.add({});", folds_.at(&accumulate), packed)
                      : fmt::format("{}.add_packed({});", scope_.state(accumulate.index), packed));
    }

    // The vector that a store or a slot takes.
    std::string packed(const Inst& inst) const {
        if (const auto words = packed_outs_.find(&inst); words != packed_outs_.end()) return words->second;
        const Dtype dtype = inst.kind == InstKind::kKeep ? slot(inst).dtype : inst.dtype;
        return fmt::format("rj_pack<{}>({})", gpu_storage_type(dtype), arrays_.at(&inst));
    }

    void gather(const Inst& accumulate) {
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

    void keep(const Inst& inst) {
        const Inst* load = kept_load(inst);
        if (is_ring(inst)) {
            if (load == nullptr || copied_to(*load) == nullptr)
                out_.line(fmt::format("rj_shared_store_vec({}, {});", ring_place(slot(inst), 0),
                                      load != nullptr ? vectors_.at(load) : packed(inst)));
            return;
        }
        if (slot(inst).residency == Residency::kStages) return;
        if (load != nullptr && in_registers(inst)) return;  // the loaded vector itself
        const std::string vec = load != nullptr ? vectors_.at(load) : packed(inst);
        if (in_registers(inst)) {
            out_.line(fmt::format("{} = {};", kept_here(inst) + resident_entry(), vec));
        } else {
            out_.line(fmt::format("rj_shared_store_vec({}, {});", shared_offset(slot(inst)), vec));
        }
    }

    const ColumnLoop& loop_;
    GpuScope& scope_;
    SourceWriter& out_;
    GpuKept& kept_;

    GpuLoop inside_;
    bool resident_ = true;
    std::int64_t group_ = 1;  // iterations whose loads are issued together
    std::vector<const Inst*> front_;
    std::map<const Inst*, GpuAddress> addresses_;
    std::map<const Inst*, const Inst*> chosen_by_;  // of a load at a chosen address, what chooses
    std::map<const Inst*, const Inst*> chosen_as_;  // of loads that it stands for, that one
    std::map<const Inst*, std::string> vectors_;  // of loads and of slots in shared memory, as an iteration names them
    std::set<std::string> declared_;              // those of them that are declared before the iterations
    std::string one_matches_;                     // whether a lane of the vector is a compared_column
    std::map<const Inst*, std::string> divisors_;
    std::map<ValueId, std::string> lane_divisors_;  // of the lanes that are open
    std::map<const Inst*, std::string> uniforms_;
    std::map<std::pair<std::string, bool>, std::string> fractions_;  // by limit, and whether it lies beyond
    std::map<const Inst*, std::string> arrays_;
    std::map<const Inst*, std::string> terms_;        // of pairs, all that a thread has
    std::map<const Inst*, std::string> folds_;        // greatest and least of vectors as they lie in memory
    std::map<const Inst*, std::string> factors_;      // second factors of sums of products, lane by lane
    std::map<const Inst*, std::string> elements_;     // of lane l, where that is not l
    std::map<const Inst*, std::string> orders_;       // the array that has them, where there is one
    std::set<const Inst*> before_lanes_;              // conditions that all lanes share, and what only they read
    std::map<const Inst*, std::string> packed_outs_;  // vectors of what leaves in words
    std::map<ValueId, std::string> words_;            // of the pair, or of all lanes
    std::map<ValueId, std::string> crossing_;         // arrays of what both lanes leave for a later turn
    std::set<ValueId> in_lanes_;                      // what the turn has named of words and vectors
};

}  // namespace

void emit_held_loads(const ColumnLoop& loop, GpuScope& scope) {
    std::vector<const Inst*> held;
    for (const Inst& inst : loop.body) {
        if (inst.held >= 0 && !scope.is_held(inst)) held.push_back(&inst);
    }
    if (held.empty()) return;
    SourceWriter& out = scope.out();
    const std::string entry = loop.iterations > 1 ? "[i]" : "";
    const GpuLoop inside{.columns = &loop, .axes = {loop.axes.begin(), loop.axes.end()}};
    for (const Inst* load : held) {
        scope.set_held(*load, scope.names().fresh(scope.tensor(*load).name + "_held"));
        out.line(fmt::format("{} {}{};", gpu_vec_type(load->dtype, lanes_of(*load, loop)), scope.held(*load),
                             all_entries(loop)),
                 "for all rows of the block");
    }
    std::vector<GpuAddress> addresses;
    for (const Inst* load : held) addresses.push_back(scope.address(*load, inside, column(load->access.anchor)));
    open_resident(loop, scope);
    for (std::size_t k = 0; k < held.size(); ++k)
        out.line(fmt::format("{}{} = {};", scope.held(*held[k]), entry,
                             scope.load(*held[k], addresses[k], lanes_of(*held[k], loop))));
    close_resident(loop, scope);
}

void declare_kept(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    for (const Inst& inst : loop.body) {
        if (inst.kind != InstKind::kKeep || kept.contains(inst.index)) continue;
        const Slot& slot = scope.slot(inst);
        if (slot.residency == Residency::kStages) continue;
        kept[inst.index] = scope.names().fresh(slot.label);
        scope.out().line(
            fmt::format("{} {}{};", gpu_vec_type(slot.dtype, loop.vector), kept[inst.index], all_entries(loop)));
    }
}

void declare_windows(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    for (const Inst& inst : loop.body) {
        if (inst.kind != InstKind::kKeep || scope.slot(inst).rows_back == 0) continue;
        const Slot& slot = scope.slot(inst);
        if (slot.residency != Residency::kRegisters) {
            // What rows before the first read of rows before them goes nowhere, and is written all the same.
            scope.out().line(fmt::format(
                "for (int back = 0; back < {}; ++back) rj_shared_store_vec({}, rj_zeros<{}, {}>());", slot.ring_rows(),
                place_in_ring(slot, loop, scope, "back"), gpu_storage_type(slot.dtype), loop.vector));
            continue;
        }
        kept[inst.index] = scope.names().fresh(slot.label);
        scope.out().line(fmt::format("{} {}[{}] = {{}};", gpu_vec_type(slot.dtype, loop.vector), kept[inst.index],
                                     slot.rows_back + 1),
                         "of this row and of those before it");
    }
}

void move_windows(GpuScope& scope, const GpuKept& kept) {
    for (const auto& [index, name] : kept) {
        const int rows_back = scope.kernel().slots[static_cast<std::size_t>(index)].rows_back;
        if (rows_back == 0) continue;
        scope.out().line("#pragma unroll");
        scope.out().line(
            fmt::format("for (int back = {0}; back > 0; --back) {1}[back] = {1}[back - 1];", rows_back, name));
    }
}

void emit_column_loop(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    ColumnEmitter(loop, scope, kept).run();
}

void emit_tested(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept) {
    ColumnEmitter(loop, scope, kept).declare_tested();
}

void ColumnFetch::declare(std::string_view suffix) {
    if (!loop_.is_resident()) return;
    const bool staged = scope_.kernel().schedule.stages > 0;
    for (const Inst& inst : loop_.body) {
        if (staged ? inst.stage_offset_bytes < 0 : !fits_registers(inst)) continue;
        loads_.push_back(&inst);
        if (staged) {
            scope_.set_fetched(inst, place(inst));
            continue;
        }
        const std::string type = gpu_vec_type(inst.dtype, lanes_of(inst, loop_));
        const std::string name = scope_.names().fresh(fmt::format("{}_{}", scope_.tensor(inst).name, suffix));
        const bool several = loop_.iterations > 1;
        scope_.out().line(fmt::format("{} {}{};", type, name, all_entries(loop_)));
        scope_.set_fetched(inst, several ? name + "[i]" : name);
    }
}

void ColumnFetch::take(std::string_view suffix) {
    for (const Inst* load : loads_) {
        const std::string name = scope_.names().fresh(fmt::format("{}_{}", scope_.tensor(*load).name, suffix));
        const std::string type = gpu_vec_type(load->dtype, lanes_of(*load, loop_));
        const std::string entry = loop_.iterations > 1 ? "[i]" : "";
        scope_.out().line(fmt::format("{} {}{};", type, name, all_entries(loop_)));
        if (loop_.iterations > 1) scope_.out().line("#pragma unroll");
        const std::string each =
            loop_.iterations > 1 ? fmt::format("for (int i = 0; i < {}; ++i) ", loop_.iterations) : "";
        scope_.out().line(fmt::format("{}{}{} = {};", each, name, entry, scope_.fetched(*load)));
        scope_.set_fetched(*load, name + entry);
    }
}

bool ColumnFetch::fits_registers(const Inst& inst) const {
    const bool whole = is_vector(inst) || inst.access.kind == Access::Kind::kSplat || loop_.vector == 1;
    return scope_.kernel().can_fetch(inst) && !is_uniform(inst) && whole;
}

std::int64_t ColumnFetch::bytes(const Inst& load) const {
    return lanes_of(load, loop_) * static_cast<std::int64_t>(size_bytes(load.dtype));
}

std::string ColumnFetch::place(const Inst& load) const {
    return scope_.staged(load.stage_offset_bytes, loop_.iterations > 1 ? "i" : "", bytes(load));
}

void ColumnFetch::load() {
    if (loads_.empty()) return;
    GpuLoop inside{.columns = &loop_, .axes = {loop_.axes.begin(), loop_.axes.end()}};
    std::vector<GpuAddress> addresses;
    for (const Inst* load : loads_) {
        const GpuAddress at = scope_.address(*load, inside, column(load->access.anchor));
        addresses.push_back(by_iteration(at, loop_, scope_, "i"));
    }
    SourceWriter& out = scope_.out();
    open_resident(loop_, scope_);
    for (std::size_t i = 0; i < loads_.size(); ++i) {
        const Inst& load = *loads_[i];
        out.line(
            load.stage_offset_bytes < 0
                ? fmt::format("{} = {};", scope_.fetched(load), scope_.load(load, addresses[i], lanes_of(load, loop_)))
                : fmt::format("rj_copy_ahead<{}>({}, {});", bytes(load), place(load), addresses[i].text()));
    }
    close_resident(loop_, scope_);
}

}  // namespace rowjit
