#include "compiler/own_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/declined.h"
#include "base/dtype.h"

namespace rowjit {
namespace {

constexpr int kRowThreads = 8;                   // on a row of a tile, four rows to a warp
constexpr int kColumns = 8;                      // of an access: 16 bytes of the tile
constexpr std::int64_t kMapAlignmentBytes = 16;  // of a matrix's address and rows, as boxes are copied of it

class OwnProducts {
  public:
    OwnProducts(Program* program, const Target& target) : program_(*program), target_(target) {}

    void run() {
        for (std::size_t place = 0; place + 1 < program_.order.size(); ++place) {
            if (program_.order[place].kind != PlanStep::Kind::kProduct || !is_in_loop(place)) continue;
            const std::size_t index = program_.order[place].index;
            const ProductStep& product = program_.products[index];
            Offer<Kernel> kernel = kernel_of(place);
            if (!kernel) {
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
        return std::any_of(program_.loops.begin(), program_.loops.end(), [&](const ProgramLoop& loop) {
            return place >= loop.first && place + 1 < loop.end;
        });
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
        if (std::string reason = is_no_tiles_product(product); !reason.empty()) return Declined{std::move(reason)};
        const PlanStep& next = program_.order[place + 1];
        if (next.kind != PlanStep::Kind::kKernel) return Declined{"no kernel comes behind it"};
        const Step& rows = program_.steps[next.index];
        if (std::string reason = is_read_elsewhere(product, next.index); !reason.empty())
            return Declined{std::move(reason)};
        const std::vector<AxisId> kept = kept_axes(product);
        const bool in_blocks = kept.back() == program_.division.within;
        std::vector<AxisId> row_axes(kept.begin(), std::prev(kept.end()));
        if (rows.group.row_axes != row_axes) return Declined{fmt::format("{} has other rows", rows.kernel.name)};

        Schedule schedule{.family = Family::kElementwise,
                          .residency = Residency::kRegisters,
                          .threads_per_row = kRowThreads,
                          .rows_per_block = OwnProduct::kRowThreads / kRowThreads,
                          .vector = kColumns};
        if (!in_blocks)
            schedule.column_blocks =
                (axis(kept.back()).extent + OwnProduct::kTileColumns - 1) / OwnProduct::kTileColumns;
        Offer<Kernel> kernel = build_kernel(rows.group, schedule, target_);
        if (!kernel) return Declined{kernel.reason()};
        const std::string& name = tensor(product.result).name;
        const auto found = std::find_if(kernel->tensors.begin(), kernel->tensors.end(),
                                        [&](const KernelTensor& one) { return one.name == name; });
        if (found == kernel->tensors.end()) return Declined{fmt::format("{} does not read it", rows.kernel.name)};
        const int in_tiles = static_cast<int>(found - kernel->tensors.begin());
        if (std::string reason = needs_more_than_tiles(*kernel, in_tiles); !reason.empty())
            return Declined{std::move(reason)};
        give_product(&*kernel, in_tiles, in_blocks);
        return kernel;
    }

    std::vector<AxisId> kept_axes(const ProductStep& product) const {
        std::vector<AxisId> kept;
        for (const int operand : {product.left, product.right}) {
            for (const AxisId id : tensor(operand).axes) {
                if (!contains(product.contracted, id)) kept.push_back(id);
            }
        }
        return kept;
    }

    // Why tiles do not make it; "" where they do.
    std::string is_no_tiles_product(const ProductStep& product) const {
        const ProgramTensor& left = tensor(product.left);
        const ProgramTensor& right = tensor(product.right);
        const ProgramTensor& result = tensor(product.result);
        if (product.accumulate || product.accumulator >= 0) return "it is added up";
        if (result.place != ProgramTensor::Place::kTemporary) return fmt::format("{} is no temporary", result.name);
        const bool narrow = result.dtype == Dtype::kBf16 || result.dtype == Dtype::kF16;
        if (!narrow || left.dtype != result.dtype || right.dtype != result.dtype)
            return "tiles are of bf16 or f16, as both operands";
        const AxisId depth = product.contracted.front();
        if (product.contracted.size() != 1 || left.axes.back() != depth || right.axes.back() != depth ||
            axis(depth).is_row)
            return "tiles are of operands whose innermost axis is the contracted one, of columns";
        if (axis(depth).extent * static_cast<std::int64_t>(size_bytes(result.dtype)) % kMapAlignmentBytes != 0)
            return fmt::format("rows of {} elements are not multiples of {} bytes", axis(depth).extent,
                               kMapAlignmentBytes);
        // One stride from row to row, whatever a launch gives.
        const std::size_t rows = left.axes.size() - 1;
        const std::size_t columns = right.axes.size() - 1;
        if (rows != 1 && left.place != ProgramTensor::Place::kTemporary)
            return fmt::format("the rows of {} need not follow each other", left.name);
        const bool in_blocks = columns == 2 && right.axes[0] == program_.division.blocks &&
                               right.axes[1] == program_.division.within &&
                               axis(right.axes[1]).extent == OwnProduct::kTileColumns;
        const bool plain = columns == 1 && !axis(right.axes[0]).is_row;
        if (!plain && !in_blocks) return fmt::format("the columns of {} are of several axes", right.name);
        std::vector<AxisId> kept = kept_axes(product);
        return kept == result.axes ? "" : fmt::format("the axes of {} have another order", result.name);
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
            if (other.over == product.result && !writes(program_.steps[reader], static_cast<int>(i)))
                return fmt::format("{} lies in its memory", other.name);
        }
        return "";
    }

    static bool writes(const Step& step, int index) {
        const auto found = std::find(step.tensors.begin(), step.tensors.end(), index);
        const auto place = static_cast<std::size_t>(found - step.tensors.begin());
        return found != step.tensors.end() && step.kernel.tensors[place].written;
    }

    // What a kernel asks of its rows that tiles do not give; "" for nothing.
    static std::string needs_more_than_tiles(const Kernel& kernel, int in_tiles) {
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

    void give_product(Kernel* kernel, int in_tiles, bool in_blocks) const {
        using Kind = KernelArgument::Kind;
        std::erase_if(kernel->arguments, [&](const KernelArgument& argument) {
            const bool of_tensor = argument.kind == Kind::kPointer || argument.kind == Kind::kStride;
            return of_tensor && argument.index == in_tiles;
        });
        kernel->arguments.push_back({.kind = Kind::kMatrix, .index = 0, .name = "product_left"});
        kernel->arguments.push_back({.kind = Kind::kMatrix, .index = 1, .name = "product_right"});
        kernel->arguments.push_back({.kind = Kind::kSide, .index = 0, .name = "product_rows"});
        kernel->arguments.push_back({.kind = Kind::kSide, .index = 1, .name = "product_columns"});
        kernel->arguments.push_back({.kind = Kind::kSide, .index = 2, .name = "product_depth"});
        kernel->product = OwnProduct{.tensor = in_tiles, .in_blocks = in_blocks};
        kernel->shared_bytes = OwnProduct::kSharedBytes;
        kernel->most_row_blocks = std::max(1, target_.sm_count / OwnProduct::kClusterBlocks);
    }

    Program& program_;
    const Target& target_;
};

}  // namespace

void take_own_products(Program* program, const Target& target) {
    if (target.warpgroup_products) OwnProducts(program, target).run();
}

}  // namespace rowjit
