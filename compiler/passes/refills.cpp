// Which loop reads a row in its stage for the last time: there each of a thread's vectors makes room for that of a row
// to come, whose copy is issued at once. Were it issued behind the row, nothing would be on its way while a row in one
// stage is used, which is all that shared memory has room for where rows are widest.
#include <algorithm>
#include <cstdint>
#include <variant>

#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

class Refills {
  public:
    explicit Refills(Kernel* kernel) : kernel_(*kernel) {}

    void run() {
        // What is repeated reads more than once.
        if (std::ranges::any_of(kernel_.body,
                                [](const Stmt& stmt) { return std::holds_alternative<OpenSteps>(stmt.node); }))
            return;
        for (const Stmt& stmt : kernel_.body) {
            const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr) continue;
            for (const Inst& inst : loop->body) {
                if (inst.stage_offset_bytes >= 0) refill(inst.stage_offset_bytes, *loop);
            }
        }
    }

  private:
    void refill(std::int64_t place, const ColumnLoop& copied) {
        ColumnLoop* last = nullptr;
        bool meets_behind = false;  // over the row, behind `last`
        for (Stmt& stmt : kernel_.body) {
            if (auto* loop = std::get_if<ColumnLoop>(&stmt.node); loop != nullptr && reads(*loop, place)) {
                last = loop;
                meets_behind = false;
            }
            meets_behind = meets_behind || meets(stmt);
        }
        // The first phase of a skewed row comes before the last one of the row before, and knows neither's place.
        const bool is_first = kernel_.schedule.skew && meets_behind;
        if (last != nullptr && !is_first && are_alike(copied, *last) && in_order(*last, place))
            last->refills.push_back(place);
    }

    bool is_at(const Inst& inst, std::int64_t place) const { return place_in_stage(kernel_, inst) == place; }

    bool reads(const ColumnLoop& loop, std::int64_t place) const {
        return std::ranges::any_of(loop.body, [&](const Inst& inst) { return is_at(inst, place); });
    }

    // Each iteration reads what it fills, and nothing of another.
    bool in_order(const ColumnLoop& loop, std::int64_t place) const {
        return std::ranges::none_of(
            loop.body, [&](const Inst& inst) { return is_at(inst, place) && (inst.turn > 0 || inst.rows_back > 0); });
    }

    static bool are_alike(const ColumnLoop& a, const ColumnLoop& b) {
        return a.is_resident() && b.is_resident() && !a.is_peeled() && !b.is_peeled() && a.iterations == b.iterations &&
               a.vector == b.vector && a.columns == b.columns && a.axes == b.axes;
    }

    Kernel& kernel_;
};

// H200, ms of norms' derivatives with copies behind rows and with refills. What is copied while a row is stored would
// wait where there is most to copy: large parts of a cluster, alone on their multiprocessors. Of 262144 f32 columns in
// one stage rms_norm's 0.167 and 0.138, add_rms_norm's 0.140 and 0.118, of 131072 in two 0.113 and 0.0987,
// add_layer_norm's 0.120 and 0.107. Elsewhere rows are there in time, and a copy for each vector only adds
// instructions: rms_norm's of 8192 bf16 columns in one block 0.0992 and 0.0998, a group norm's of four channels 0.102
// and 0.111, layer_norm's of 65536 f32 columns, in parts of 64 KiB, 0.119 and 0.122, of 100352, skewed in three stages,
// 0.114 and 0.120, eight states' 0.131 and 0.145, jsd's of 32000 bf16 classes, three blocks of which share a
// multiprocessor, 0.171 and 0.178.
bool gains_by_refills(const Kernel& kernel) {
    constexpr std::int64_t kLargePart = 80 * 1024;
    const Schedule& s = kernel.schedule;
    const bool in_turns = std::ranges::any_of(kernel.body, [](const Stmt& stmt) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        return loop != nullptr && loop->iterations > 1 && !loop->refills.empty();
    });
    return kernel.cluster_blocks() > 1 && s.blocks_per_sm == 1 && !s.skew && in_turns &&
           kernel.stage_bytes >= kLargePart;
}

}  // namespace

Kernel refill_stages(Kernel kernel, const Target& /*target*/) {
    if (kernel.schedule.residency != Residency::kStages || kernel.stage_bytes == 0) return kernel;
    Refills(&kernel).run();
    kernel.refills = gains_by_refills(kernel);
    return kernel;
}

}  // namespace rowjit
