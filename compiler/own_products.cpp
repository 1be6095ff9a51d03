#include "compiler/own_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/declined.h"
#include "compiler/plan/tile_product.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

constexpr int kRowThreads = 8;  // on a row of a tile, four rows to a warp

// What a kernel asks of its rows that tiles do not give; "" for nothing.
std::string needs_more_than_tiles(const Kernel& kernel, int in_tiles) {
    if (kernel.slots_axis >= 0 || !kernel.before.empty() || !kernel.after.empty())
        return "a kernel that sums over its rows has blocks of its own";
    if (kernel.shared_bytes > 0 || kernel.walk || kernel.peeled_by)
        return "a kernel's rows have shared memory, or an order, of their own";
    const std::vector<AxisId>& axes = kernel.tensors[static_cast<std::size_t>(in_tiles)].axes;
    std::string reason;
    each_inst(kernel, [&](const Inst& inst) {
        const bool accesses = inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore;
        if (!accesses || inst.index != in_tiles) return;
        bool same = inst.kind == InstKind::kLoad && inst.turn == 0;
        for (std::size_t i = 0; i < axes.size(); ++i) {
            const Coord& coord = inst.coords[i];
            same = same && coord.is_axis(Axis{axes[i]});
        }
        if (!same) reason = "it is read at other places than a row's own columns";
    });
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop != nullptr && loop->vector * loop->iterations * kRowThreads != OwnProduct::kTileColumns)
            reason = fmt::format("its columns are not divided by {}", OwnProduct::kTileColumns);
    }
    return reason;
}

int index_of(const Kernel& kernel, const std::string& tensor) {
    const auto found =
        std::ranges::find_if(kernel.tensors, [&](const KernelTensor& one) { return one.name == tensor; });
    return static_cast<int>(found - kernel.tensors.begin());
}

// The group's kernel by threads that have rows of tiles of `columns`: all of the row's, or those of a block.
Offer<Kernel> kernel_in_tiles(const Group& group, const std::string& read, bool in_blocks, std::int64_t columns,
                              const Target& target) {
    const bool reduces = phase_count(*group.graph) > 1;
    if (reduces && !in_blocks) return Declined{fmt::format("{} reduces more columns than a tile has", group.name)};
    const Schedule schedule{.family = reduces ? Family::kRowReduction : Family::kElementwise,
                            .residency = Residency::kRegisters,
                            .threads_per_row = kRowThreads,
                            .rows_per_block = OwnProduct::kRowThreads / kRowThreads,
                            .vector = kTileAccess,
                            .column_blocks = (columns + OwnProduct::kTileColumns - 1) / OwnProduct::kTileColumns,
                            .online = reduces};
    Offer<Kernel> kernel = build_kernel(group, schedule, target);
    if (!kernel) return kernel;
    if (std::string reason = needs_more_than_tiles(*kernel, index_of(*kernel, read)); !reason.empty())
        return Declined{std::move(reason)};
    return kernel;
}

class OwnProducts {
  public:
    OwnProducts(Program* program, const Target& target) : program_(*program), target_(target) {}

    void run() {
        for (std::size_t place = 0; place + 1 < program_.order.size(); ++place) {
            if (program_.order[place].kind != PlanStep::Kind::kProduct) continue;
            const std::size_t index = program_.order[place].index;
            const ProductStep& product = program_.products[index];
            const bool in_tiles = tensor(product.result).in_tiles;
            if (!in_tiles && !is_in_loop(place)) continue;
            Offer<Kernel> kernel = kernel_of(place);
            if (!kernel) {
                RJ_CHECK(!in_tiles, "own products: {} is in tiles, but {}", product.name, kernel.reason());
                program_.notes.push_back(fmt::format("a library makes {}: {}", product.name, kernel.reason()));
                continue;
            }
            program_.notes.push_back(fmt::format("kernel {} makes {} itself, in tiles of {} x {}", kernel->name,
                                                 product.name, OwnProduct::kTileRows, OwnProduct::kTileColumns));
            Step& rows = program_.steps[program_.order[place + 1].index];
            rows = make_step(program_, std::move(rows.group), std::move(*kernel));
            rows.product = index;
            program_.products[index].by_kernel = true;
            take_out(place);
        }
    }

  private:
    const ProgramTensor& tensor(int index) const { return program_.tensors[static_cast<std::size_t>(index)]; }
    const AxisInfo& axis(AxisId id) const { return program_.axes[static_cast<std::size_t>(id)]; }

    // The product and the step behind it.
    bool is_in_loop(std::size_t place) const {
        return std::any_of(program_.loops.begin(), program_.loops.end(),
                           [&](const ProgramLoop& loop) { return place >= loop.first && place + 1 < loop.end; });
    }

    void take_out(std::size_t place) {
        program_.order.erase(program_.order.begin() + static_cast<std::ptrdiff_t>(place));
        for (ProgramLoop& loop : program_.loops) {
            loop.first -= loop.first > place ? 1 : 0;
            loop.end -= loop.end > place ? 1 : 0;
        }
    }

    // The kernel that comes behind the product, with the product in it.
    Offer<Kernel> kernel_of(std::size_t place) const {
        const ProductStep& product = program_.products[program_.order[place].index];
        if (product.accumulate || product.accumulator >= 0) return Declined{"it is added up"};
        const TileProduct tiles = {operand(product.left), operand(product.right), operand(product.result),
                                   product.contracted};
        if (std::string reason = no_tiles_reason(tiles, program_.axes, program_.division); !reason.empty())
            return Declined{std::move(reason)};
        const PlanStep& next = program_.order[place + 1];
        if (next.kind != PlanStep::Kind::kKernel) return Declined{"no kernel comes behind it"};
        const Step& rows = program_.steps[next.index];
        const auto seen = std::find_if(rows.tensors.begin(), rows.tensors.end(), [&](int index) {
            return index == product.result || is_in_tiles(index, product.result);
        });
        if (seen == rows.tensors.end()) return Declined{fmt::format("{} does not read it", rows.kernel.name)};
        std::vector<AxisId> row_axes = tensor(*seen).axes;
        // Rows, the tiles' places and their columns; a row of 256 columns is no more of a block than others.
        const bool in_blocks = row_axes.size() == tensor(product.left).axes.size() + 1;
        const std::int64_t columns = axis(row_axes.back()).extent;
        row_axes.pop_back();
        if (rows.group.row_axes != row_axes) return Declined{fmt::format("{} has other rows", rows.kernel.name)};
        const std::string elsewhere = is_read_elsewhere(product, next.index);
        if (!elsewhere.empty()) return Declined{elsewhere};

        Offer<Kernel> kernel = kernel_in_tiles(rows.group, tensor(*seen).name, in_blocks, columns, target_);
        if (!kernel) return kernel;
        const int in_tiles = index_of(*kernel, tensor(*seen).name);
        give_product(&*kernel, {.tensor = in_tiles,
                                .in_blocks = in_blocks,
                                .inside = in_blocks ? inside_condition(*kernel, columns_of(product)) : -1});
        return kernel;
    }

    TileOperand operand(int index) const {
        const ProgramTensor& one = tensor(index);
        return {one.name, one.dtype, one.axes, one.place == ProgramTensor::Place::kTemporary && one.over < 0};
    }

    // Whether the tensor is the product's result as tiles have it (plan/tile_sums.h).
    bool is_in_tiles(int index, int result) const {
        const ProgramTensor& one = tensor(index);
        return one.over == result && one.axes.size() == tensor(result).axes.size() + 1 &&
               axis(one.axes.back()).extent == OwnProduct::kTileColumns;
    }

    // By another than the step, or under another name; "" where it is not.
    std::string is_read_elsewhere(const ProductStep& product, std::size_t reader) const {
        for (std::size_t i = 0; i < program_.steps.size(); ++i) {
            if (i != reader && contains(program_.steps[i].tensors, product.result))
                return fmt::format("{} reads it too", program_.steps[i].kernel.name);
        }
        for (const ProductStep& other : program_.products) {
            if (other.left == product.result || other.right == product.result)
                return fmt::format("{} reads it", other.name);
        }
        // What lies in its memory is what the reader makes in place.
        for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
            const ProgramTensor& other = program_.tensors[i];
            const bool overlies = other.over == product.result && !is_in_tiles(static_cast<int>(i), product.result);
            if (overlies && !writes(program_.steps[reader], static_cast<int>(i)))
                return fmt::format("{} lies in its memory", other.name);
        }
        return "";
    }

    static bool writes(const Step& step, int index) {
        const auto found = std::find(step.tensors.begin(), step.tensors.end(), index);
        const auto place = static_cast<std::size_t>(found - step.tensors.begin());
        return found != step.tensors.end() && step.kernel.tensors[place].written;
    }

    std::int64_t columns_of(const ProductStep& product) const {
        return axis(tensor(product.result).axes.back()).extent;
    }

    // first + place < columns, as plan/tile_sums.cpp asks of each column; -1 where the kernel does not.
    static ValueId inside_condition(const Kernel& kernel, std::int64_t columns) {
        std::map<ValueId, const Inst*> made;
        each_inst(kernel, [&](const Inst& inst) { made[inst.id] = &inst; });
        // What threads have met over is none's.
        const auto by_id = [&](ValueId id) {
            const auto found = made.find(id);
            return found == made.end() ? nullptr : found->second;
        };
        for (const Stmt& stmt : kernel.body) {
            const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
            if (loop == nullptr) continue;
            for (const Inst& inst : loop->body) {
                if (inst.kind != InstKind::kMap || inst.op != Op::kLt) continue;
                const Inst* place = by_id(inst.operands[0]);
                const Inst* bound = by_id(inst.operands[1]);
                if (place == nullptr || place->kind != InstKind::kMap || place->op != Op::kAdd) continue;
                const Inst* column = by_id(place->operands[1]);
                const bool is_place =
                    place->dtype == Dtype::kI32 && column != nullptr && column->kind == InstKind::kCoord;
                if (is_place && bound != nullptr && bound->kind == InstKind::kConst &&
                    bound->value == static_cast<double>(columns))
                    return inst.id;
            }
        }
        return -1;
    }

    void give_product(Kernel* kernel, const OwnProduct& product) const {
        using Kind = KernelArgument::Kind;
        std::erase_if(kernel->arguments, [&](const KernelArgument& argument) {
            const bool of_tensor = argument.kind == Kind::kPointer || argument.kind == Kind::kStride;
            return of_tensor && argument.index == product.tensor;
        });
        constexpr std::array kMatrices = {"product_left", "product_right"};
        for (std::size_t i = 0; i < kMatrices.size(); ++i)
            kernel->arguments.push_back({.kind = Kind::kMatrix, .index = static_cast<int>(i), .name = kMatrices[i]});
        constexpr std::array kSides = {"product_rows", "product_columns", "product_depth"};
        for (std::size_t i = 0; i < kSides.size(); ++i)
            kernel->arguments.push_back({.kind = Kind::kSide, .index = static_cast<int>(i), .name = kSides[i]});
        kernel->product = product;
        kernel->shared_bytes = OwnProduct::kSharedBytes;
        kernel->most_row_blocks = std::max(1, target_.sm_count / OwnProduct::kClusterBlocks);
    }

    Program& program_;
    const Target& target_;
};

}  // namespace

bool runs_in_tiles(const Group& group, const std::string& in_tiles, const Target& target) {
    return static_cast<bool>(kernel_in_tiles(group, in_tiles, true, OwnProduct::kTileColumns, target));
}

void take_own_products(Program* program, const Target& target) {
    if (target.warpgroup_products) OwnProducts(program, target).run();
}

}  // namespace rowjit
