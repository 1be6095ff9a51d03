// Independent pieces of work, by all processors.
#pragma once

#include <cstddef>
#include <functional>

namespace rowjit {

// Calls work(0), work(1), … work(count - 1), as many at once as there are processors. `work` must not throw.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work);

// Calls work(first, last) likewise, of pieces that [0, count) is divided into: many elements, a thread's start being
// worth thousands of them.
void in_parallel_pieces(std::size_t count, const std::function<void(std::size_t first, std::size_t last)>& work);

}  // namespace rowjit
