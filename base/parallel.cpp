#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace rowjit {

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
    std::atomic<std::size_t> next{0};
    const auto take = [&] {
        for (std::size_t i = next++; i < count; i = next++) work(i);
    };
    const std::size_t helpers = std::min<std::size_t>(count, std::max(1U, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < helpers; ++i) threads.emplace_back(take);
    take();
    for (std::thread& thread : threads) thread.join();
}

void in_parallel_pieces(std::size_t count, const std::function<void(std::size_t first, std::size_t last)>& work) {
    constexpr std::size_t kPiece = 1 << 14;
    in_parallel((count + kPiece - 1) / kPiece,
                [&](std::size_t i) { work(i * kPiece, std::min(count, (i + 1) * kPiece)); });
}

}  // namespace rowjit
