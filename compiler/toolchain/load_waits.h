// How often a thread waits for memory, as NVIDIA's assembler left its loads: it moves each down to its first use where
// registers are few, which neither registers nor spills tell, and costs a row as much as reading it again.
#pragma once

#include <string_view>

namespace rowjit {

struct LoadWaits {
    int waits = 0;            // one after the other: loads issued before the first wait for one are of the first
    int bytes_in_flight = 0;  // most that are asked for and not awaited yet
};

// Of the machine code of one kernel for sm_70 or later, its loads from global memory. The text is gone through once
// from its start, branches and loops as they stand: two texts of one kernel may be compared.
LoadWaits count_load_waits(std::string_view code);

}  // namespace rowjit
