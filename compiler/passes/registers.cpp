// What a resident row costs in registers. Compared with NVRTC 13's counts for the library's operations on sm_90a: kept
// values are counted exactly, later phases' loads (weights) are issued in batches of so many registers a tensor, and
// kWorkingSet covers addresses, accumulators and a vector's lanes. A narrow value kept one column at a time takes a
// whole register. tests/compiler/compile_everything_test.cpp holds the estimate to what the toolchains make.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include "compiler/passes/passes.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

constexpr std::int64_t kWorkingSet = 40;
// Of columns that are taken one by one, each in a register from when it is loaded, no vector's lanes wait for others:
// an rms_norm's backward of nine bf16 columns a thread, 60 so, takes 63, an add_rms_norm's of 17 127 in the 128 it has.
constexpr std::int64_t kWorkingSetOfOne = 24;
constexpr std::int64_t kAddresses = 24;
constexpr std::int64_t kCudaBatch = 16;
// clang issues more of an unrolled loop's loads before their first use, each with a 64-bit address: gfx90a spilled a
// layer norm of 32 f32 columns a thread in the 128 registers that blocks of 1024 threads have.
constexpr std::int64_t kHipBatch = 32;
constexpr std::int64_t kMostRegisters = 255;
constexpr std::int64_t kAddressRegisters = 2;
constexpr std::int64_t kRegisterBytes = 4;
// A skewed row's first phase stands beside the last of the row before, each with its guards: of a log-softmax's
// backward of 128256 f32 columns over 8 blocks, counted as 126, 8 bytes of 128 registers were spilled.
constexpr std::int64_t kSkewedGuards = 4;

std::int64_t registers_of(Dtype dtype, const ColumnLoop& loop, std::int64_t iterations) {
    const auto bytes = static_cast<std::int64_t>(size_bytes(dtype));
    const std::int64_t per_access = (loop.vector * bytes + kRegisterBytes - 1) / kRegisterBytes;
    return iterations * per_access;
}

std::int64_t registers_of(Dtype dtype, const ColumnLoop& loop) { return registers_of(dtype, loop, loop.iterations); }

// A kernel's values are numbered without gaps; what is held for all rows asks for an estimate at each of its loads, and
// trees of values were a third of the time that a chain of sixteen norms took to compile.
class ValueSet {
  public:
    bool contains(ValueId value) const { return index(value) < is_in_.size() && is_in_[index(value)]; }
    std::size_t size() const { return size_; }

    void insert(ValueId value) {
        if (contains(value) || value < 0) return;
        if (index(value) >= is_in_.size()) is_in_.resize(index(value) + 1, false);
        is_in_[index(value)] = true;
        ++size_;
    }

    // Whether it was there.
    bool erase(ValueId value) {
        if (!contains(value)) return false;
        is_in_[index(value)] = false;
        --size_;
        return true;
    }

  private:
    static std::size_t index(ValueId value) { return static_cast<std::size_t>(value); }

    std::vector<bool> is_in_;
    std::size_t size_ = 0;
};

// Values of a lane that are live at once, besides the one that a plain chain of operations has. A special function
// works on one more. An addend that is loaded takes its register when its product is there.
std::int64_t live_beyond_one(const ColumnLoop& loop) {
    ValueSet lane_values;
    ValueSet loaded;
    bool special = false;
    for (const Inst& inst : loop.body) {
        const bool computed = inst.kind == InstKind::kMap || inst.kind == InstKind::kCast;
        const bool loads = inst.kind == InstKind::kLoad || inst.kind == InstKind::kKept;
        const bool widens = inst.kind == InstKind::kCast && loaded.contains(inst.operands[0]);
        if (computed || loads) lane_values.insert(inst.id);
        if (loads || widens) loaded.insert(inst.id);
        special = special || (inst.kind == InstKind::kMap && is_special(inst.op));
    }
    ValueSet live;
    std::size_t most = 1;
    for (const Inst& inst : std::views::reverse(loop.body)) {
        const bool wanted = live.erase(inst.id);
        if (loaded.contains(inst.id) && !wanted) continue;
        const bool fused = inst.kind == InstKind::kMap && inst.op == Op::kFma;
        for (std::size_t i = 0; i < inst.operands.size(); ++i) {
            const bool comes_later = fused && i == 2 && loaded.contains(inst.operands[i]);
            if (lane_values.contains(inst.operands[i]) && !comes_later) live.insert(inst.operands[i]);
        }
        most = std::max(most, live.size());
    }
    return static_cast<std::int64_t>(most) - 1 + (special ? 1 : 0);
}

// Values of the row that the lanes read: statistics, weights of the whole row.
std::int64_t row_values(const ColumnLoop& loop) {
    ValueSet inside;
    ValueSet outside;
    for (const Inst& inst : loop.body) {
        for (const ValueId operand : inst.operands) {
            if (!inside.contains(operand)) outside.insert(operand);
        }
        inside.insert(inst.id);
    }
    return static_cast<std::int64_t>(outside.size());
}

// Where rows stay in their stages a loop loads and computes a vector or two at a time.
std::int64_t vectors_at_once(const Kernel& kernel, const ColumnLoop& loop) {
    const std::int64_t most = kernel.schedule.residency == Residency::kStages ? 2 : loop.iterations;
    return std::min(most, loop.iterations);
}

// Nothing orders the lanes of a loop that stores what it computes, and ptxas works on many at once: about this part of
// all values that a thread's columns have live. Where lanes meet in an accumulator they are taken one after the other,
// but for functions of them where the assembler takes more: of a Jensen-Shannon divergence of 32768 bf16 columns over
// two blocks of 512 threads 56 bytes were spilled for sm_100a in the 128 registers that suffice for sm_90a.
std::int64_t interleaved(const Kernel& kernel, const ColumnLoop& loop, const Target& target) {
    const bool apart = std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& inst) {
        const bool special = inst.kind == InstKind::kMap && is_special(inst.op);
        return inst.kind == InstKind::kStore || (special && target.assembler_registers > 0);
    });
    if (!apart || target.backend != Backend::kCuda) return 0;
    return vectors_at_once(kernel, loop) * loop.vector * live_beyond_one(loop) * 7 / 10 + row_values(loop);
}

std::int64_t loaded_registers(const Kernel& kernel, const Inst& load, const ColumnLoop& loop) {
    return registers_of(load.dtype, loop, vectors_at_once(kernel, loop));
}

// Lanes that are loaded one by one share no register, and each lane of a vector has a place of its own: a rotary
// embedding of heads of 100 columns took more than the 255 registers there are for three of 16 lanes.
std::int64_t batched_registers(const Kernel& kernel, const Inst& load, const ColumnLoop& loop, std::int64_t batch) {
    const std::int64_t loaded = std::min(batch, loaded_registers(kernel, load, loop));
    if (load.access.run > 0) return std::max<std::int64_t>(1, loaded * load.access.run / loop.vector);
    if (load.access.kind != Access::Kind::kGather || loop.vector == 1) return loaded;
    const auto bytes = static_cast<std::int64_t>(size_bytes(load.dtype));
    return loaded * std::max<std::int64_t>(1, kRegisterBytes / bytes) + loop.vector;
}

// A batch, and the iterations under a guard, which are all loaded before the first is used.
std::int64_t loaded_at_once(const Inst& load, const ColumnLoop& loop, const Kernel& kernel) {
    const bool tail = loop.tail != ColumnLoop::Tail::kNone;
    const std::int64_t whole = tail ? kernel.whole_iterations(loop) : loop.iterations;
    return std::min(kCudaBatch, registers_of(load.dtype, loop, whole)) +
           registers_of(load.dtype, loop, loop.iterations - whole);
}

// What lies in its stage is loaded when it is wanted, of many tensors a few at a time.
std::int64_t at_once(const Kernel& kernel, std::int64_t loaded) {
    constexpr std::int64_t kMostOfStage = 48;
    return kernel.schedule.residency == Residency::kStages ? std::min(loaded, kMostOfStage) : loaded;
}

// Of the loop's accumulators the most that one of its loads is for.
std::int64_t most_sums_of_load(const ColumnLoop& loop) {
    std::map<ValueId, std::set<ValueId>> loads_of;
    std::map<ValueId, std::int64_t> sums_of;
    for (const Inst& inst : loop.body) {
        std::set<ValueId> read;
        if (inst.kind == InstKind::kLoad) read.insert(inst.id);
        each_use(inst, [&](ValueId value) { read.insert(loads_of[value].begin(), loads_of[value].end()); });
        if (inst.kind == InstKind::kAccumulate) {
            for (const ValueId load : read) ++sums_of[load];
        } else if (inst.id >= 0) {
            loads_of[inst.id] = std::move(read);
        }
    }
    std::int64_t most = 0;
    for (const auto& [load, sums] : sums_of) most = std::max(most, sums);
    return most;
}

// What a loop that accumulates has besides what is loaded: addresses and counters, the lanes that wait for each
// accumulator to take them, values of the row. A backward of seven sums took 80. Of what lies in its stage only the
// lanes that are made of the same load wait at once.
std::int64_t gathered(const Kernel& kernel, const ColumnLoop& loop) {
    const std::int64_t sums = kernel.schedule.residency == Residency::kStages
                                  ? most_sums_of_load(loop)
                                  : std::count_if(loop.body.begin(), loop.body.end(),
                                                  [](const Inst& inst) { return inst.kind == InstKind::kAccumulate; });
    return sums == 0 ? 0 : kAddresses + loop.vector * sums + row_values(loop);
}

// Of a loop over rows: each sum, with what its roundings lost, and where its next term lies. Of the eight sums of a
// group norm's combined gradients 32 bytes were spilled in blocks of 1024 threads, of a hyper-connection's 27 160.
std::int64_t gathered(const Kernel& kernel, const RowsLoop& loop) {
    std::int64_t registers = 0;
    for (const Inst& inst : loop.body) {
        if (inst.kind == InstKind::kLoad) registers += kAddressRegisters;
        if (inst.kind != InstKind::kAccumulate) continue;
        registers += state_bytes(kernel.accumulators[static_cast<std::size_t>(inst.index)]) / kRegisterBytes;
    }
    return registers;
}

bool keeps_in_register(const Kernel& kernel, const Inst& inst) {
    return inst.kind == InstKind::kKeep &&
           kernel.slots[static_cast<std::size_t>(inst.index)].residency == Residency::kRegisters;
}

// Rows whose kept values live at once.
std::int64_t rows_kept(const Kernel& kernel, const Inst& keep) {
    return (kernel.schedule.skew ? 2 : 1) + kernel.slots[static_cast<std::size_t>(keep.index)].rows_back;
}

// Counts, means and deviations of threads are combined in about so many registers more than sums are.
constexpr std::int64_t kMomentsRegisters = 20;

bool has_moments(const Kernel& kernel) {
    return std::any_of(kernel.accumulators.begin(), kernel.accumulators.end(),
                       [](const Accumulator& one) { return one.monoid == Monoid::kWelford; });
}

// Of the prelude's rj_divisor that a quotient reads, two where it is narrow.
constexpr std::int64_t kDivisorNumbers = 3;

// What the block loaded or computed before its rows and reads for each.
std::int64_t held_registers(const Kernel& kernel) {
    std::int64_t registers = 0;
    std::set<int> counted;
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (inst.held >= 0 && counted.insert(inst.held).second) registers += registers_of(inst.dtype, *loop);
        }
    }
    for (const Stmt& stmt : kernel.before) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        for (const Inst& inst : loop->body) {
            if (!keeps_in_register(kernel, inst)) continue;
            const bool is_divisor = kernel.slots[static_cast<std::size_t>(inst.index)].is_divisor;
            registers += registers_of(inst.dtype, *loop) * (is_divisor ? kDivisorNumbers : 1);
        }
    }
    return registers;
}

// clang makes more of the rows of a persistent block: it copies the sums at a row's end, and what all rows read it
// loads and widens before the first. An RMS norm's backward of 4096 bf16 columns took about 203 registers on gfx1100,
// for 152 with each counted once and as it is loaded, and 192 there were.
bool clang_holds_more(const Kernel& kernel, const Target& target) {
    return target.backend == Backend::kHip && !kernel.carried.empty();
}

// All lanes have come to as many rows.
constexpr int kMomentsOfLane = 2;

// What stays with a thread through all rows of a persistent block.
std::int64_t registers_through_rows(const Kernel& kernel) {
    std::int64_t registers = held_registers(kernel);
    for (std::size_t i = 0; i < kernel.carried.size(); ++i) {
        const Monoid monoid = kernel.carried[i].monoid;
        const int of_lane = monoid == Monoid::kMoments ? kMomentsOfLane : components(monoid);
        registers += carried_lanes(kernel, static_cast<int>(i)) * of_lane;
    }
    return registers;
}

// Of what all rows read, `batched` where it is loaded anew for each.
std::int64_t shared_registers(const Kernel& kernel, const ColumnLoop& loop, const Target& target,
                              std::int64_t batched) {
    return clang_holds_more(kernel, target) ? std::max(batched, vectors_at_once(kernel, loop) * loop.vector) : batched;
}

// Numbers of a row that are live at once, as they are written.
std::int64_t live_numbers(const Kernel& kernel) {
    ValueSet numbers;
    for (const Stmt& stmt : kernel.body) {
        if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) {
            for (const ValueId result : reduce->results) numbers.insert(result);
        }
        const auto* inst = std::get_if<Inst>(&stmt.node);
        const bool computed = inst != nullptr && (inst->kind == InstKind::kMap || inst->kind == InstKind::kCast ||
                                                  inst->kind == InstKind::kLoad);
        if (computed && inst->dtype != Dtype::kBool) numbers.insert(inst->id);
    }
    ValueSet live;
    const auto use = [&](const Inst& inst) {
        for (const ValueId operand : inst.operands) {
            if (numbers.contains(operand)) live.insert(operand);
        }
    };
    std::size_t most = 0;
    for (const Stmt& stmt : std::views::reverse(kernel.body)) {
        if (const auto* inst = std::get_if<Inst>(&stmt.node)) {
            live.erase(inst->id);
            use(*inst);
        } else if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) {
            for (const Inst& inside : loop->body) use(inside);
        } else if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) {
            for (const ValueId result : reduce->results) live.erase(result);
        }
        most = std::max(most, live.size());
    }
    return static_cast<std::int64_t>(most);
}

// Whether the loop keeps what it loads as it is: in the same registers.
bool keeps_as_loaded(const Kernel& kernel, const Inst& load, const ColumnLoop& loop) {
    return std::any_of(loop.body.begin(), loop.body.end(), [&](const Inst& inst) {
        return keeps_in_register(kernel, inst) && inst.operands[0] == load.id && inst.dtype == load.dtype;
    });
}

// What stays after every remedy of the toolchain's (compiler/toolchain/nvrtc.cpp), one block on a multiprocessor among
// them. It counts what may be live at once, of which the assembler saved up to an eighth.
std::int64_t least_registers(const Kernel& kernel) {
    std::int64_t kept = registers_through_rows(kernel);
    std::int64_t most = kept + live_numbers(kernel) + kAddresses;
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr) continue;
        std::int64_t loaded = 0;
        for (const Inst& inst : loop->body) {
            if (keeps_in_register(kernel, inst)) kept += rows_kept(kernel, inst) * registers_of(inst.dtype, *loop);
            if (inst.kind != InstKind::kLoad || inst.turn > 0 || !kernel.by_row(inst)) continue;
            if (keeps_as_loaded(kernel, inst, *loop)) continue;
            // Of a serial loop a vector of each tensor and where it lies: an attention residual of many streams.
            loaded += loop->unrolled && kernel.schedule.residency != Residency::kStages
                          ? loaded_at_once(inst, *loop, kernel)
                          : registers_of(inst.dtype, *loop, 1) + kAddressRegisters;
        }
        most = std::max(most, kept + at_once(kernel, loaded) + std::max(kAddresses, gathered(kernel, *loop)));
    }
    return most;
}

// clang unrolls no loop that would be of more instructions than this (-pragma-unroll-threshold), and what the rounds
// keep in arrays then lies in memory: 272 bytes a thread of a rotary embedding that computed its angles' functions for
// four vectors of eight columns. Its sine or cosine, with the way of large arguments, is some 300 instructions.
constexpr std::int64_t kMostUnrolledInstructions = 16 * 1024;
constexpr std::int64_t kTrigonometricInstructions = 300;

std::int64_t unrolled_instructions(const ColumnLoop& loop) {
    std::int64_t each = 0;
    for (const Inst& inst : loop.body) {
        const bool trigonometric = inst.kind == InstKind::kMap && (inst.op == Op::kSin || inst.op == Op::kCos);
        each += trigonometric ? kTrigonometricInstructions : 1;
    }
    return each * loop.vector * loop.iterations;
}

std::string exceeds_unrolling(const Kernel& kernel) {
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || !loop->unrolled || loop->iterations == 1) continue;
        const std::int64_t instructions = unrolled_instructions(*loop);
        if (instructions > kMostUnrolledInstructions)
            return fmt::format(
                "a loop of about {} instructions unrolled; clang leaves those of more than {} as they are",
                instructions, kMostUnrolledInstructions);
    }
    return "";
}

// A multiprocessor's registers belong to its schedulers, whose warps take as many each, eight at a time: of 18 warps,
// five of which share a scheduler, each has 96.
constexpr std::int64_t kSchedulers = 4;
constexpr std::int64_t kRegistersAtOnce = 8;

std::int64_t guards_of_skewed(const Kernel& kernel) {
    const bool guarded = std::any_of(kernel.body.begin(), kernel.body.end(), [](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop != nullptr && loop->tail != ColumnLoop::Tail::kNone;
    });
    return kernel.schedule.skew && kernel.schedule.stages > 0 && guarded ? kSkewedGuards : 0;
}

// Whether there is room in the working set for what all rows read, as there are registers for: one tensor's row is all
// that a block holds, and no row to come. Layer norms of four to seven vectors a thread fit 64 registers so, with
// weight and bias (bf16 of 9216 to 28672 columns, f32 of 2880 and 5120), where a batch of their loads counted 16 more.
bool loads_with_room(const Kernel& kernel, const Target& target) {
    const auto is_of_row = [&](const Inst& inst) {
        return inst.kind == InstKind::kLoad && kernel.by_row(inst) && inst.access.kind != Access::Kind::kUniform;
    };
    const bool one = std::all_of(kernel.body.begin(), kernel.body.end(), [&](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop == nullptr || std::count_if(loop->body.begin(), loop->body.end(), is_of_row) <= 1;
    });
    return target.backend == Backend::kCuda && kernel.schedule.blocks_per_sm == 0 && kernel.carried.empty() && one;
}

// Whether no loop has a vector of columns.
bool takes_singly(const Kernel& kernel) {
    return std::all_of(kernel.body.begin(), kernel.body.end(), [](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop == nullptr || loop->vector == 1;
    });
}

// With as many blocks on a multiprocessor as the schedule wants.
std::int64_t wanted_limit(const Kernel& kernel, const Target& target) {
    return registers_beside(kernel, target, std::max(1, kernel.schedule.min_blocks_per_sm)) -
           target.assembler_registers;
}

}  // namespace

std::int64_t registers_beside(const Kernel& kernel, const Target& target, std::int64_t blocks) {
    const std::int64_t waves = (kernel.block_threads() + target.warp_size - 1) / target.warp_size * blocks;
    const std::int64_t places = (waves + kSchedulers - 1) / kSchedulers * kSchedulers;
    const std::int64_t each = target.registers_per_sm / (places * target.warp_size);
    return std::min(kMostRegisters, each / kRegistersAtOnce * kRegistersAtOnce);
}

std::int64_t blocks_beside(const Kernel& kernel, const Target& target, int registers) {
    std::int64_t blocks = 0;
    while ((blocks + 1) * kernel.block_threads() <= target.max_threads_per_sm &&
           registers_beside(kernel, target, blocks + 1) >= registers)
        ++blocks;
    return blocks;
}

bool loads_may_wait(const Kernel& kernel, const Target& target) {
    const Schedule& s = kernel.schedule;
    return target.backend == Backend::kCuda && s.family == Family::kRowReduction && !s.fetches_ahead() &&
           s.threads_per_row > target.warp_size;
}

int estimated_registers(const Kernel& kernel, const Target& target) {
    const std::int64_t batch = target.backend == Backend::kHip ? kHipBatch : kCudaBatch;
    std::int64_t kept = registers_through_rows(kernel) * (clang_holds_more(kernel, target) ? 2 : 1) +
                        (has_moments(kernel) ? kMomentsRegisters : 0) + guards_of_skewed(kernel);
    std::int64_t most = kept + (takes_singly(kernel) ? kWorkingSetOfOne : kWorkingSet);
    const bool with_room = loads_with_room(kernel, target);
    bool fetching = kernel.schedule.prefetch;  // the first loop's loads are held a row longer
    for (const Stmt& stmt : kernel.body) {
        if (const auto* rows = std::get_if<RowsLoop>(&stmt.node))
            most = std::max(most, kept + kWorkingSet + gathered(kernel, *rows));
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || !loop->unrolled) continue;
        std::int64_t batches = 0;
        std::int64_t shared = 0;  // of what all rows read
        for (const Inst& inst : loop->body) {
            if (keeps_in_register(kernel, inst)) kept += rows_kept(kernel, inst) * registers_of(inst.dtype, *loop);
            if (inst.kind != InstKind::kLoad || inst.held >= 0 || inst.turn > 0) continue;
            if ((with_room || loop->vector == 1) && keeps_as_loaded(kernel, inst, *loop)) continue;
            const std::int64_t batched = batched_registers(kernel, inst, *loop, batch);
            if (kernel.by_row(inst))
                batches += batched;
            else
                shared += shared_registers(kernel, *loop, target, batched);
            if (fetching) kept += registers_of(inst.dtype, *loop);
        }
        fetching = false;
        if (target.backend == Backend::kCuda) shared = with_room ? 0 : std::min(shared, batch);
        const std::int64_t working =
            loop->vector == 1 ? kWorkingSetOfOne : std::max(kWorkingSet, interleaved(kernel, *loop, target));
        most = std::max(most, kept + at_once(kernel, batches) + shared + working);
    }
    return static_cast<int>(most);
}

std::int64_t spare_registers(const Kernel& kernel, const Target& target) {
    return wanted_limit(kernel, target) - estimated_registers(kernel, target);
}

std::string lacks_registers(const Kernel& kernel, const Target& target) {
    const int threads = kernel.block_threads();
    const std::int64_t likely = estimated_registers(kernel, target);
    const std::int64_t limit = wanted_limit(kernel, target);
    if (likely > limit)
        return fmt::format("about {} registers a thread; blocks of {} threads have {}", likely, threads, limit);
    if (target.backend == Backend::kHip) return exceeds_unrolling(kernel);
    // Blocks that shall share a multiprocessor want most of it: the remedy would be one block on each, for which a
    // bounded grid is too large. H200, an attention residual's backward in blocks of 64 registers for the 113 that are
    // counted here took 154 and 0.223 ms, 0.203 in half as many blocks; a polynomial norm's of 98 has room in 62.
    const std::int64_t least = least_registers(kernel);
    const std::int64_t most = registers_beside(kernel, target, 1) - target.assembler_registers;
    const std::int64_t bound = std::min(most * 9 / 8, limit * 13 / 8);
    if (least <= bound) return "";
    return fmt::format("at least {} registers a thread; blocks of {} threads have {}", least, threads,
                       bound < most ? limit : most);
}

}  // namespace rowjit
