// What is timed side by side: work queued on one device, each in turn, round by round; and its tensors.
#pragma once

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/fail.h"
#include "dsl/tensor.h"
#include "rowjit/engine.h"
#include "runtime/device.h"

namespace rowjit {

// Tokens, hidden columns and the columns that a product makes of them.
struct ProductShape {
    std::int64_t tokens;
    std::int64_t hidden;
    std::int64_t columns;
};

inline ProductShape product_shape_of(const std::string& text) {
    std::int64_t sides[3] = {};
    const char* at = text.data();
    for (std::int64_t& side : sides) {
        const auto [end, error] = std::from_chars(at, text.data() + text.size(), side);
        if (error != std::errc() || side < 1)
            fail(ErrorCode::kInvalidArgument, "'{}' is no shape; give TOKENSxHIDDENxCOLUMNS", text);
        at = end + (end < text.data() + text.size() ? 1 : 0);
    }
    return {sides[0], sides[1], sides[2]};
}

class Memory {
  public:
    Memory(const Device& device, std::size_t bytes) : device_(device), data_(device.allocate(bytes)) {}
    ~Memory() { device_.release(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    void* data() const { return data_; }

  private:
    const Device& device_;
    void* data_;
};

// Values drawn between −1 and 1 and made into an element's by `value`, by doubling a block of them.
inline void fill(const Device& device, const Memory& memory, Dtype dtype, std::int64_t elements,
                 const std::function<double(double)>& value) {
    const std::int64_t drawn = std::min<std::int64_t>(elements, 1 << 20);
    Tensor block{dtype, {drawn}, {}};
    std::uint64_t state = 88172645463325252ULL;
    for (std::int64_t i = 0; i < drawn; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.values.push_back(value(static_cast<double>(state >> 40) / (1 << 23) - 1));
    }
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(dtype));
    std::vector<std::byte> written(static_cast<std::size_t>(drawn * element_bytes));
    write_tensor({dtype, {drawn}, {1}}, block, written.data());
    device.copy_to_device(memory.data(), written.data(), written.size());
    auto* bytes = static_cast<std::byte*>(memory.data());
    for (std::int64_t done = drawn; done < elements;) {
        const std::int64_t next = std::min(done, elements - done);
        device.impl().copy_on_device(bytes + done * element_bytes, bytes,
                                     static_cast<std::size_t>(next * element_bytes), nullptr);
        done += next;
    }
}

class Work : public TimedWork {
  public:
    explicit Work(std::function<void()> queue) : queue_(std::move(queue)) {}
    void queue(int /*repetition*/) const override { queue_(); }

  private:
    std::function<void()> queue_;
};

struct Contender {
    std::string name;
    std::int64_t chunk_rows = 0;  // of plain products
    std::size_t workspace_bytes = 0;
    std::unique_ptr<Work> work;
    std::vector<double> samples_ms = {};

    double median_ms() const {
        std::vector<double> sorted = samples_ms;
        std::sort(sorted.begin(), sorted.end());
        return sorted[sorted.size() / 2];
    }
};

// Work of this long is queued before what is timed. A GPU at its limit of power sets its clock by what ran before: on
// an H200 the same program took 2 to 11 % longer behind products of random numbers than behind itself.
constexpr double kSettlingMs = 100;

// Round by round, each behind itself.
inline void time_in_turn(const Device& device, int rounds, std::vector<Contender>* contenders) {
    std::vector<int> settling;
    for (Contender& contender : *contenders) {
        device.impl().time_ms(nullptr, 1, *contender.work);
        const double ms = device.impl().time_ms(nullptr, 1, *contender.work)[0];
        settling.push_back(1 + static_cast<int>(kSettlingMs / ms));
    }
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < contenders->size(); ++i) {
            Contender& contender = (*contenders)[i];
            contender.samples_ms.push_back(device.impl().time_ms(nullptr, settling[i] + 1, *contender.work).back());
        }
    }
}

}  // namespace rowjit
