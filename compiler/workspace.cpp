#include "compiler/workspace.h"

#include <algorithm>

#include "base/dtype.h"

namespace rowjit {

Workspace workspace_of(const Program& program, std::int64_t rows) {
    Workspace result;
    std::vector<int> accumulators;
    for (const ProductStep& product : program.products) accumulators.push_back(product.accumulator);
    for (std::size_t i = 0; i < program.tensors.size(); ++i) {
        const ProgramTensor& tensor = program.tensors[i];
        if (tensor.place != ProgramTensor::Place::kTemporary || tensor.over >= 0) continue;
        const auto index = static_cast<int>(i);
        const bool within = program.loop && contains(program.loop->within, index);
        std::int64_t row_count = 1;
        std::int64_t bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
        bool slots = false;
        for (const AxisId id : tensor.axes) {
            const AxisInfo& axis = program.axes[static_cast<std::size_t>(id)];
            slots = slots || axis.is_slots;
            if (within && id == program.loop->axis) continue;
            const std::int64_t extent = axis.extent == kRuntimeExtent ? rows : axis.extent;
            bytes *= extent;
            if (axis.is_row) row_count *= extent;
        }
        if (slots) continue;
        if (within) result.bytes.position_rows = std::max(result.bytes.position_rows, row_count);
        (within                          ? result.bytes.of_position
         : contains(accumulators, index) ? result.bytes.accumulators
                                         : result.bytes.others) += bytes;
    }
    result.chunks.positions = std::max<std::int64_t>(1, rows);
    if (program.loop) result.chunks = program.loop->costs.divide(rows, result.bytes);
    result.total = result.bytes.others + result.chunks.positions * result.bytes.of_position +
                   (result.chunks.chunks > 1 ? result.bytes.accumulators : 0);
    return result;
}

}  // namespace rowjit
