// Rows that lie so far apart that their places need more than 32 bits, in memory that is reserved and hardly touched.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstdint>
#include <span>
#include <vector>

#include "rowjit/engine.h"

namespace rowjit {

class ReservedMemory {
  public:
    explicit ReservedMemory(std::size_t bytes)
        : bytes_(bytes),
          data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
        REQUIRE(data_ != MAP_FAILED);
    }
    ~ReservedMemory() { munmap(data_, bytes_); }
    ReservedMemory(const ReservedMemory&) = delete;
    ReservedMemory& operator=(const ReservedMemory&) = delete;
    float* floats() const { return static_cast<float*>(data_); }

  private:
    std::size_t bytes_;
    void* data_;
};

// y of an RMS norm of f32 rows, `stride` elements apart in x and in y; x[row][column] depends on both.
inline std::vector<float> norm_of_rows(const Executable& norm, std::int64_t columns, std::int64_t stride) {
    constexpr std::int64_t kRows = 4;
    const auto bytes = static_cast<std::size_t>(kRows * stride) * sizeof(float);
    const ReservedMemory x(bytes);
    const ReservedMemory y(bytes);
    std::vector<float> weight(static_cast<std::size_t>(columns), 0.5F);
    for (std::int64_t row = 0; row < kRows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column)
            x.floats()[row * stride + column] = static_cast<float>((row + 3) * (column % 17) - 20);
    }
    const std::int64_t strides[] = {stride};
    Arguments arguments = norm.arguments();
    arguments.rows("tokens", kRows).tensor("x", x.floats(), strides).tensor("y", y.floats(), strides);
    arguments.tensor("weight", weight.data());
    norm.launch(nullptr, arguments).or_throw();
    std::vector<float> found;
    for (std::int64_t row = 0; row < kRows; ++row)
        found.insert(found.end(), y.floats() + row * stride, y.floats() + row * stride + columns);
    return found;
}

constexpr std::int64_t kFarStride = (std::int64_t{1} << 30) + 64;  // elements: the third row is past 2^31 of them

}  // namespace rowjit
