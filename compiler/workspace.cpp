#include "compiler/workspace.h"

#include <algorithm>

#include "base/dtype.h"

namespace rowjit {
namespace {

constexpr int kOutside = -1;

// The loop of whose chunk a tensor is.
int loop_of(const Program& program, int tensor) {
    for (std::size_t i = 0; i < program.loops.size(); ++i) {
        if (contains(program.loops[i].within, tensor)) return static_cast<int>(i);
    }
    return kOutside;
}

std::int64_t extent_of(const Program& program, AxisId id, std::int64_t rows) {
    const AxisInfo& axis = program.axes[static_cast<std::size_t>(id)];
    return axis.blocks > 0 ? axis.blocks : axis.extent == kRuntimeExtent ? rows : axis.extent;
}

}  // namespace

std::int64_t Workspace::chunk_bytes() const {
    std::int64_t most = 0;
    for (const Loop& loop : loops) {
        const std::int64_t each = loop.bytes.beside_position + (loop.chunks.lent ? 0 : loop.bytes.of_position);
        most = std::max(most, loop.chunks.positions * each);
    }
    return most;
}

Workspace workspace_of(const Program& program, std::int64_t rows) {
    Workspace result;
    result.loops.resize(program.loops.size());
    std::vector<int> accumulators;
    std::int64_t shared = 0;
    for (const ProductStep& product : program.products) {
        accumulators.push_back(product.accumulator);
        shared += shared_rows(program, product).bytes;
    }
    for (std::size_t i = 0; i < program.tensors.size(); ++i) {
        const ProgramTensor& tensor = program.tensors[i];
        if (tensor.place != ProgramTensor::Place::kTemporary || tensor.over >= 0 || tensor.in_tiles) continue;
        const auto index = static_cast<int>(i);
        const int within = loop_of(program, index);
        std::int64_t row_count = 1;
        std::int64_t bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
        bool slots = false;
        for (const AxisId id : tensor.axes) {
            const AxisInfo& axis = program.axes[static_cast<std::size_t>(id)];
            slots = slots || axis.is_slots;
            if (within >= 0 && id == program.loops[static_cast<std::size_t>(within)].axis) continue;
            bytes *= extent_of(program, id, rows);
            if (axis.is_row) row_count *= extent_of(program, id, rows);
        }
        if (slots) continue;
        if (within >= 0) {
            ChunkBytes& chunk = result.loops[static_cast<std::size_t>(within)].bytes;
            chunk.position_rows = std::max(chunk.position_rows, row_count);
            const bool is_beside = contains(program.loops[static_cast<std::size_t>(within)].beside, index);
            (is_beside ? chunk.beside_position : chunk.of_position) += bytes;
        } else {
            (contains(accumulators, index) ? result.accumulators : result.others) += bytes;
        }
    }
    for (std::size_t i = 0; i < program.loops.size(); ++i) {
        const ProgramLoop& loop = program.loops[i];
        Workspace::Loop& found = result.loops[i];
        found.positions = extent_of(program, loop.axis, rows);
        found.bytes.others = result.others;
        if (i == 0) {
            found.bytes.accumulators = result.accumulators;
            found.bytes.shared = shared;
        }
        if (loop.axis == program.division.blocks)
            found.bytes.position_rows = program.axes[static_cast<std::size_t>(program.division.within)].extent;
        if (!loop.writes_lender) found.bytes.lent = lent_bytes(program, loop);
        found.bytes.lent_to_several = loop.lender_is_rounded;
        found.chunks = loop.costs.divide(found.positions, found.bytes);
        if (i > 0) continue;
        if (found.chunks.chunks > 1)
            result.accumulators_taken = result.accumulators - (found.chunks.shared ? shared : 0);
    }
    result.total = result.others + result.chunk_bytes() + result.accumulators_taken;
    return result;
}

}  // namespace rowjit
