// What a graph takes and gives, as the C ABI reports it and checks arguments against it.
#pragma once

#include <cstdint>
#include <vector>

#include "dsl/graph.h"
#include "rowjit/rowjit_c.h"

namespace rowjit {

// Of which of Signature::row_axes a tensor's row axis has the extents' product, `times` what does not change, and how
// many positions more. The extent that a launch gives is known from a tensor along it alone.
struct RowPlace {
    std::vector<int> places = {};  // none of a static axis
    std::int64_t times = 1;
    std::int64_t more = 0;
    bool is_known = true;  // not where a factor has more positions than those it follows

    bool gives_extent() const { return is_known && places.size() == 1 && times == 1; }
};

struct Signature {
    std::vector<rowjit_tensor_info> tensors;        // inputs, then outputs: the places of an executable's arguments
    std::vector<std::vector<RowPlace>> row_places;  // of each tensor's row axes
    std::vector<rowjit_scalar_info> scalars;
    std::vector<const char*> row_axes;  // with a run-time extent
    std::int32_t inputs = 0;
};

// Its strings are the graph's. Throws Error(kUnsupported) for a tensor of more than ROWJIT_MAX_AXES axes.
Signature make_signature(const GraphData& graph);

// Throws Error(kInvalidArgument) naming the tensor where `value` does not fit its declaration.
void check_fits(const rowjit_tensor_info& declared, const rowjit_tensor& value);

}  // namespace rowjit
