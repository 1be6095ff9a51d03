// The extents, strides and addresses of one launch: of the arguments, of the workspace, and of one chunk of a loop; and
// what is refused of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/fail.h"
#include "runtime/launch_plan.h"
#include "runtime/launch_refusal.h"

namespace rowjit {
namespace {

std::size_t align_up(std::size_t bytes) { return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment; }

}  // namespace

std::int64_t LaunchPlan::row_extent(const TensorFacts& tensor, std::size_t axis, const Resolved& resolved) noexcept {
    const int place = tensor.extent_places[axis];
    return place < 0 ? tensor.extents[axis] : resolved.extents[place];
}

RowCounts LaunchPlan::rows_of(const Launch& launch, const Resolved& resolved, std::int64_t positions) const noexcept {
    const int divided = launch.loop < 0 || positions < 0 ? -1 : loop_places_[static_cast<std::size_t>(launch.loop)];
    RowCounts rows;
    for (const RowAxis& axis : launch.row_axes) {
        const std::int64_t extent = axis.place < 0 ? axis.extent : resolved.extents[axis.place];
        (axis.outer ? rows.outer : rows.inner) *= axis.place >= 0 && axis.place == divided ? positions : extent;
    }
    return rows;
}

std::int64_t LaunchPlan::tensor_extent(std::size_t tensor, std::size_t axis, const Resolved& resolved) const noexcept {
    const TensorFacts& facts = tensors_[tensor];
    return facts.holds_chunk_along(axis) ? resolved.loops[facts.within].positions : row_extent(facts, axis, resolved);
}

// Parts of sums over rows, of as many rows as the kernel has, but in a loop for those of the divided axis: `positions`
// of it.
std::int64_t LaunchPlan::parts_of(const Launch& launch, const Resolved& resolved,
                                  std::int64_t positions) const noexcept {
    return slots_of(*launch.kernel, rows_of(launch, resolved, positions));
}

// What the caller set, then the slots of kernels that sum over their rows: as many as they have blocks along the rows,
// of all chunks.
void LaunchPlan::resolve_extents(const Arguments& arguments, Resolved* resolved) const noexcept {
    for (std::size_t i = 0; i < argument_extents_; ++i) resolved->extents[i] = arguments.extents_[i];
    for (const Following& axis : following_) {
        std::int64_t product = axis.times;
        for (const std::size_t followed : axis.followed) product *= resolved->extents[followed];
        resolved->extents[axis.place] = product + axis.more;
    }
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        const std::int64_t blocks = program_.axes[static_cast<std::size_t>(extent_axes_[i])].blocks;
        if (blocks > 0) resolved->extents[i] = blocks;
    }
    divide(resolved);
    for (const Launch& launch : launches_) {
        if (launch.slots_place < 0) continue;
        std::int64_t& slots = resolved->extents[launch.slots_place];
        if (launch.loop < 0) {
            slots = parts_of(launch, *resolved, -1);
            continue;
        }
        const auto loop = static_cast<std::size_t>(launch.loop);
        const ChunkChoice& share = resolved->loops[loop];
        const std::int64_t before = share.chunks - 1;
        const std::int64_t rest = resolved->extents[loop_places_[loop]] - before * share.positions;
        slots = before * parts_of(launch, *resolved, share.positions) + parts_of(launch, *resolved, rest);
    }
}

void LaunchPlan::divide(Resolved* resolved) const noexcept {
    ChunkBytes bytes[kMaxLoops];
    std::int64_t others = 0;
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        if (facts.over >= 0 || facts.in_tiles) continue;
        std::int64_t rows = 1;
        bool slots = false;
        for (std::size_t axis = 0; axis < facts.row_axes.size(); ++axis) {
            if (facts.holds_chunk_along(axis)) continue;
            slots = slots || facts.extent_places[axis] >= static_cast<int>(argument_extents_);
            if (!slots) rows *= row_extent(facts, axis, *resolved);
        }
        if (slots) continue;
        const std::int64_t taken = rows * facts.column_span * static_cast<std::int64_t>(facts.element_bytes);
        if (facts.within >= 0) {
            ChunkBytes& chunk = bytes[facts.within];
            chunk.position_rows = std::max(chunk.position_rows, rows);
            (facts.beside ? chunk.beside_position : chunk.of_position) += taken;
        } else {
            (facts.accumulator ? bytes[0].accumulators : others) += taken;
            bytes[0].shared += facts.shared_bytes;
        }
    }
    for (std::size_t i = 0; i < program_.loops.size(); ++i) {
        const ProgramLoop& loop = program_.loops[i];
        bytes[i].others = others;
        if (!loop.writes_lender) bytes[i].lent = lent_bytes(program_, loop);
        bytes[i].lent_to_several = loop.lender_is_rounded;
        if (loop.axis == program_.division.blocks)
            bytes[i].position_rows = program_.axes[static_cast<std::size_t>(program_.division.within)].extent;
        resolved->loops[i] = loop.costs.divide(resolved->extents[loop_places_[i]], bytes[i]);
        resolved->position_bytes[i] = bytes[i].of_position;
    }
}

// Addresses and strides of every tensor; returns the workspace bytes the temporaries and the products take.
std::size_t LaunchPlan::resolve(const Arguments& arguments, Resolved* resolved) const noexcept {
    resolve_extents(arguments, resolved);
    std::size_t workspace = 0;
    auto* const block = static_cast<std::byte*>(arguments.workspace_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        const bool temporary = i >= argument_tensors_;
        const bool strided = !temporary && arguments.tensors_[i].strided;
        const std::int64_t elements = lay_out(i, strided ? arguments.tensors_[i].row_strides : nullptr, resolved);
        if (!temporary) {
            resolved->data[i] = arguments.tensors_[i].data;
            continue;
        }
        resolved->data[i] = block + workspace;
        const bool unused = facts.accumulator && resolved->loops[0].chunks == 1;
        if (facts.over >= 0 || facts.within >= 0 || facts.in_tiles || unused) continue;
        const std::int64_t shared = facts.accumulator && resolved->loops[0].shared ? facts.shared_bytes : 0;
        workspace +=
            align_up(static_cast<std::size_t>(elements) * facts.element_bytes - static_cast<std::size_t>(shared));
    }
    place_chunks(block, resolved, &workspace);
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        if (tensors_[i].over >= 0) resolved->data[i] = resolved->data[tensors_[i].over];
    }
    for (const Launch& launch : launches_) {  // in their order: one stays what another has stayed
        if (is_needed(launch, *resolved)) continue;
        for (const Step::Stay& stay : launch.stays) resolved->data[stay.stored] = resolved->data[stay.otherwise];
    }
    const std::size_t product_bytes = products_.empty() ? 0 : gemm_workspace_bytes(*resolved);
    if (product_bytes == 0) {
        resolved->gemm_workspace = nullptr;
        return workspace;
    }
    // The caller's block is less aligned than a product's workspace has to be: wherever it lies, there is room.
    const auto address = reinterpret_cast<std::uintptr_t>(block) + workspace;
    resolved->gemm_workspace = block + workspace + (0 - address) % kGemmWorkspaceAlignment;
    return workspace + align_up(product_bytes) + kGemmWorkspaceAlignment - kWorkspaceAlignment;
}

// A tensor's row strides, contiguous where none are given; returns the elements it spans.
std::int64_t LaunchPlan::lay_out(std::size_t tensor, const std::int64_t* given, Resolved* resolved) const noexcept {
    const TensorFacts& facts = tensors_[tensor];
    std::int64_t inside = facts.column_span;
    for (std::size_t axis = facts.row_axes.size(); axis-- > 0;) {
        const std::int64_t stride = given != nullptr ? given[axis] : inside;
        resolved->row_strides[tensor][axis] = stride;
        inside = std::max(inside, inside + (tensor_extent(tensor, axis, *resolved) - 1) * stride);
    }
    return inside;
}

// What is of one chunk: of every loop in the same memory, or in that of an output which is written later.
void LaunchPlan::place_chunks(std::byte* block, Resolved* resolved, std::size_t* workspace) const noexcept {
    std::size_t most = 0;
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
        auto* const lent = resolved->loops[loop].lent ? resolved->data[program_.loops[loop].lender] : nullptr;
        most = std::max(most, place_chunk(loop, block + *workspace, static_cast<std::byte*>(lent), resolved));
    }
    resolved->chunk_place = block + *workspace;
    *workspace += most;
}

// The temporaries of one chunk of as many positions as the loop has, large ones where memory is lent; returns the bytes
// that they take of `place`.
std::size_t LaunchPlan::place_chunk(std::size_t loop, std::byte* place, std::byte* lent,
                                    Resolved* resolved) const noexcept {
    std::size_t taken = 0;
    std::size_t borrowed = 0;
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        if (tensors_[i].within != static_cast<int>(loop)) continue;
        const std::int64_t elements = lay_out(i, nullptr, resolved);
        if (tensors_[i].over >= 0) continue;
        const bool borrows = lent != nullptr && !tensors_[i].beside;
        std::size_t& offset = borrows ? borrowed : taken;
        resolved->data[i] = (borrows ? lent : place) + offset;
        offset += align_up(static_cast<std::size_t>(elements) * tensors_[i].element_bytes);
    }
    for (std::size_t i = argument_tensors_; i < tensors_.size(); ++i) {
        const TensorFacts& facts = tensors_[i];
        if (facts.within == static_cast<int>(loop) && facts.over >= 0) resolved->data[i] = resolved->data[facts.over];
    }
    return taken;
}

std::size_t LaunchPlan::workspace_bytes(const Arguments& arguments) const {
    if (tensors_.size() == argument_tensors_ && products_.empty()) return 0;
    for (std::size_t i = 0; i < argument_extents_; ++i) {
        if (arguments.extents_[i] >= 0 || !is_given(i)) continue;
        fail(ErrorCode::kInvalidArgument, "workspace: the extent of row axis '{}' is not set; call rows() first",
             program_.axes[static_cast<std::size_t>(extent_axes_[i])].name);
    }
    Resolved resolved;
    return resolve(arguments, &resolved);
}

Status LaunchPlan::check(const Arguments& arguments, const Resolved& resolved) const noexcept {
    for (std::size_t i = 0; i < argument_tensors_; ++i) {
        Status status = check_tensor(i, arguments, resolved);
        if (!status.ok()) return status;
    }
    return {};
}

Status LaunchPlan::check_tensor(std::size_t index, const Arguments& arguments,
                                const Resolved& resolved) const noexcept {
    const TensorFacts& facts = tensors_[index];
    const std::string& name = program_.tensors[index].name;
    std::int64_t rows = 1;
    for (std::size_t axis = 0; axis < facts.row_axes.size(); ++axis) rows *= row_extent(facts, axis, resolved);
    if (rows == 0) return {};
    if (resolved.data[index] == nullptr) {
        return refuse(ErrorCode::kInvalidArgument, "tensor '{}' is {}; set it with Arguments::tensor", name,
                      arguments.tensors_[index].set ? "null" : "not set");
    }
    if (reinterpret_cast<std::uintptr_t>(resolved.data[index]) % static_cast<std::uintptr_t>(facts.alignment_bytes) !=
        0) {
        return refuse(ErrorCode::kInvalidArgument, "tensor '{}' is not aligned to {} bytes; allocate it so, or copy it",
                      name, facts.alignment_bytes);
    }
    for (std::size_t axis = 0; axis < facts.row_axes.size(); ++axis) {
        // Of a planner's group by itself: columns of the program that it is of, whose stride was declared there.
        if (program_.axes[static_cast<std::size_t>(facts.row_axes[axis])].is_promoted) continue;
        const std::int64_t bytes = resolved.row_strides[index][axis] * static_cast<std::int64_t>(facts.element_bytes);
        if (bytes % facts.alignment_bytes == 0 || row_extent(facts, axis, resolved) <= 1) continue;
        return refuse(
            ErrorCode::kInvalidArgument,
            "tensor '{}': row stride {} elements is not a multiple of {} bytes; pad the rows, or copy the tensor", name,
            resolved.row_strides[index][axis], facts.alignment_bytes);
    }
    if (!facts.output) return {};
    for (std::size_t other = 0; other < argument_tensors_; ++other) {
        if (other == index || resolved.data[other] != resolved.data[index] || facts.alias == static_cast<int>(other))
            continue;
        return refuse(
            ErrorCode::kInvalidArgument,
            "output '{}' has the address of '{}' but was not declared to overwrite it; set OutputOptions::alias", name,
            program_.tensors[other].name);
    }
    return {};
}

// As the model wants it where an output's part that is not written yet has room, else as the workspace has.
LaunchPlan::Chunk LaunchPlan::chunk_at(std::size_t loop, std::int64_t start, const Resolved& whole) const noexcept {
    const ProgramLoop& facts = program_.loops[loop];
    const std::int64_t left = whole.extents[loop_places_[loop]] - start;
    Chunk chunk{start, whole.loops[loop].positions};
    if (facts.writes_lender && whole.position_bytes[loop] > 0) {
        const std::int64_t block = program_.axes[static_cast<std::size_t>(program_.division.within)].extent;
        const std::int64_t written_bytes = block_bytes(loop);
        const std::int64_t fitting = (lent_bytes(program_, facts) - 2 * kPlaceAlignment - start * written_bytes) /
                                     (written_bytes + whole.position_bytes[loop]);
        const std::int64_t positions = facts.costs.choose_blocks(fitting, left, block, whole.position_bytes[loop]);
        if (positions >= chunk.positions) chunk = {start, positions, true};
    }
    chunk.positions = std::min(chunk.positions, left);
    return chunk;
}

// Of the output that a loop over blocks of columns writes: of a block.
std::int64_t LaunchPlan::block_bytes(std::size_t loop) const noexcept {
    const ProgramTensor& lender = program_.tensors[static_cast<std::size_t>(program_.loops[loop].lender)];
    const auto extent = [&](AxisId id) { return program_.axes[static_cast<std::size_t>(id)].extent; };
    return lender.column_strides[0] * extent(program_.division.within) *
           static_cast<std::int64_t>(size_bytes(lender.dtype));
}

// Each chunk sees its own positions of every tensor along the divided axis, and its own blocks' parts of sums.
void LaunchPlan::see_chunk(std::size_t loop, const Chunk& chunk, const Resolved& whole, Resolved* part) const noexcept {
    part->extents[loop_places_[loop]] = chunk.positions;
    if (program_.loops[loop].axis == program_.division.blocks) {
        const auto extent = [&](AxisId id) { return program_.axes[static_cast<std::size_t>(id)].extent; };
        const std::int64_t end = (chunk.start + chunk.positions) * extent(program_.division.within);
        part->columns_short = std::max<std::int64_t>(0, end - extent(program_.division.whole));
    }
    const auto at = [&](std::size_t tensor, std::int64_t elements) {
        return static_cast<std::byte*>(whole.data[tensor]) +
               elements * static_cast<std::int64_t>(tensors_[tensor].element_bytes);
    };
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        if (tensors_[i].is_divided_by(loop))
            part->data[i] = at(i, chunk.start * whole.row_strides[i][tensors_[i].loop_axes[loop]]);
    }
    if (program_.loops[loop].writes_lender) place_behind_written(loop, chunk, whole, part);
    for (const Launch& launch : launches_) {
        if (launch.loop != static_cast<int>(loop) || launch.slots_place < 0) continue;
        part->extents[launch.slots_place] = parts_of(launch, whole, chunk.positions);
        const std::int64_t each = whole.loops[loop].positions;
        const std::int64_t done = chunk.start / each * parts_of(launch, whole, each);
        for (const int tensor : launch.parts) {
            const auto i = static_cast<std::size_t>(tensor);
            part->data[i] = at(i, done * whole.row_strides[i][0]);
        }
    }
}

// At the end of the output, or in the workspace.
void LaunchPlan::place_behind_written(std::size_t loop, const Chunk& chunk, const Resolved& whole,
                                      Resolved* part) const noexcept {
    part->loops[loop].positions = chunk.in_rest ? chunk.positions : whole.loops[loop].positions;
    auto* const lender = static_cast<std::byte*>(whole.data[program_.loops[loop].lender]);
    const std::int64_t bytes = chunk.positions * whole.position_bytes[loop];
    std::byte* const place = lender + (lent_bytes(program_, program_.loops[loop]) - kPlaceAlignment - bytes);
    const auto past = reinterpret_cast<std::uintptr_t>(place) % kPlaceAlignment;
    place_chunk(loop, chunk.in_rest ? place - past : part->chunk_place, nullptr, part);
}

}  // namespace rowjit
