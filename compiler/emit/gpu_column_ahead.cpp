// Loads of a column loop that are issued before it: once for all rows of the block, or while the block works on the row
// before, which a loop may do that reads the places they go to for the last time. When else that is, gpu.cpp says.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/emit/gpu_columns.h"

namespace rowjit::gpu_emit {
namespace {

std::int64_t bytes_of(const Inst& load, const ColumnLoop& loop) {
    return lanes_of(load, loop) * static_cast<std::int64_t>(size_bytes(load.dtype));
}

// In the stage, of an iteration of the loop it is read in.
std::string place_of(const Inst& load, const ColumnLoop& loop, const GpuScope& scope) {
    return scope.staged(load.stage_offset_bytes, loop.iterations > 1 ? "i" : "", bytes_of(load, loop));
}

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

void ColumnFetch::declare(std::string_view suffix) {
    if (!loop_.is_resident()) return;
    const bool staged = scope_.kernel().schedule.stages > 0;
    for (const Inst& inst : loop_.body) {
        if (staged ? inst.stage_offset_bytes < 0 : !fits_registers(inst)) continue;
        loads_.push_back(&inst);
        if (staged) {
            scope_.set_fetched(inst, place_of(inst, loop_, scope_));
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

void ColumnFetch::leave_out(const std::vector<std::int64_t>& places) {
    std::erase_if(loads_, [&](const Inst* load) { return std::ranges::count(places, load->stage_offset_bytes) > 0; });
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
        out.line(load.stage_offset_bytes < 0 ? fmt::format("{} = {};", scope_.fetched(load),
                                                           scope_.load(load, addresses[i], lanes_of(load, loop_)))
                                             : fmt::format("rj_copy_ahead<{}>({}, {});", bytes_of(load, loop_),
                                                           place_of(load, loop_, scope_), addresses[i].text()));
    }
    close_resident(loop_, scope_);
}

void declare_refill(const ColumnLoop& loop, GpuScope& scope) {
    std::vector<const Inst*> loads;
    for (const std::int64_t place : loop.refills) {
        each_inst(scope.kernel(), [&](const Inst& inst) {
            if (inst.kind == InstKind::kLoad && inst.stage_offset_bytes == place) loads.push_back(&inst);
        });
    }
    const std::string name = scope.names().fresh("refill");
    SourceWriter& out = scope.out();
    std::vector<std::string> read;
    std::string parameters;
    for (const Inst* load : loads) {
        read.push_back(scope.names().fresh(scope.tensor(*load).name + "_read"));
        parameters += fmt::format(", const {}& {}", gpu_vec_type(load->dtype, lanes_of(*load, loop)), read.back());
    }
    out.open(fmt::format("const auto {} = [&](long long row, int stage, int i{})", name, parameters),
             "copies to where a vector of the row before was read");
    scope.declare_row();
    const GpuLoop inside{.columns = &loop, .axes = {loop.axes.begin(), loop.axes.end()}};
    std::vector<GpuAddress> addresses;
    for (const Inst* load : loads)
        addresses.push_back(by_iteration(scope.address(*load, inside, column(load->access.anchor)), loop, scope, "i"));
    out.line(fmt::format("const int c = {};", column_of(loop, scope, loop.iterations > 1 ? "i" : "")));
    for (std::size_t k = 0; k < loads.size(); ++k)
        out.line(
            fmt::format("rj_copy_behind({}, {}, {});", place_of(*loads[k], loop, scope), addresses[k].text(), read[k]));
    out.close(";");
    scope.forget_axes(scope.kernel().inner_axes());
    scope.set_refill(loop, name);
}

}  // namespace rowjit::gpu_emit
