// Running an executable on host tensors and comparing it with the oracle: what `rowjit verify`, the tuner and every
// backend's tests do with a kernel before they believe it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsl/accuracy.h"
#include "dsl/interpret.h"
#include "rowjit/engine.h"

namespace rowjit {

struct RunOptions {
    // Elements between the end of a row and the start of the next, on every tensor with a row axis.
    std::int64_t row_padding = 0;
    // So many more on each tensor than on the one before it.
    std::int64_t padding_growth = 0;
    // In-place outputs get the address of the input they may overwrite.
    bool in_place = true;
    // Behind every buffer. 0 where something else watches the ends, as a sanitizer does.
    std::size_t guard_bytes = 256;
};

// The executable's outputs for these bindings. Outputs, padding and workspace are poisoned with NaN patterns before the
// launch, and every buffer ends in guard bytes: an element that is not written, or a byte written past an end, throws
// InternalError naming the tensor. `graph` is the one the executable was compiled from.
Tensors run(const Device& device, const Executable& executable, const GraphData& graph, const Bindings& bindings,
            const RunOptions& options = {});

struct Verification {
    std::string output;
    ErrorReport report;
};

// Every output against the oracle in double and in eager rounding.
std::vector<Verification> verify(const Device& device, const Executable& executable, const GraphData& graph,
                                 const Bindings& bindings, const RunOptions& options = {});

// One launch or more, their outputs compared as one tensor (dsl/accuracy.h says when that is needed).
std::vector<Verification> verify(const Device& device, const Executable& executable, const GraphData& graph,
                                 std::span<const Bindings> launches, const RunOptions& options = {});

// How many launches give every output so many elements, over all of them.
std::uint64_t launch_count(const GraphData& graph, const RowExtents& rows, std::int64_t elements);

// What is outside the bar is asked over so many times as many launches.
inline constexpr std::uint64_t kMoreLaunches = 8;

// Over as many launches as give every output a few elements, and where one is outside the bar over kMoreLaunches times
// as many: how far eager is from a single number, as a loss is, is luck. `inputs` makes a launch's bindings by its
// number.
std::vector<Verification> verify_several(const Device& device, const Executable& executable, const GraphData& graph,
                                         const std::function<Bindings(std::uint64_t)>& inputs,
                                         const RunOptions& options = {});

bool within_bar(const std::vector<Verification>& outputs);
std::string describe(const std::vector<Verification>& outputs);

}  // namespace rowjit
