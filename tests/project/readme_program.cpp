// The program around the README's C++: what the text leaves to its reader — rows, data, a stream — and a check of what
// comes out. snippet.py takes the README's block apart into the two files included here, so that it is compiled and
// run.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "readme_head.h"

namespace {

// Some rows of 4096 bf16 values in the device's memory, all the same.
void* filled(const rowjit::Device& device, std::int64_t rows, float value) {
    const std::vector<std::uint16_t> host(rows * 4096, std::bit_cast<std::uint32_t>(value) >> 16);
    void* data = device.allocate(host.size() * 2);
    device.copy_to_device(data, host.data(), host.size() * 2);
    return data;
}

float last(const rowjit::Device& device, const void* data, std::int64_t rows) {
    std::uint16_t value = 0;
    device.copy_to_host(&value, static_cast<const std::uint16_t*>(data) + rows * 4096 - 1, sizeof value);
    return std::bit_cast<float>(std::uint32_t{value} << 16);
}

}  // namespace

int main() {
    const rowjit::Device device = rowjit::Device::best();
    const rowjit::Stream stream = device.create_stream();
    const std::int64_t n = 3;
    void* x_data = filled(device, n, 1.5F);
    void* r_data = filled(device, n, 0.5F);
    void* w_data = filled(device, 1, 4);
    void* sum_data = filled(device, n, 0);
    void* y_data = filled(device, n, 0);
    {
#include "readme_body.h"
    }
    device.synchronize(stream);
    const float sum = last(device, sum_data, n);
    const float y = last(device, y_data, n);
    std::printf("sum %g, y %g\n", sum, y);
    for (void* data : {x_data, r_data, w_data, sum_data, y_data}) device.release(data);
    device.destroy_stream(stream);
    return sum == 2 && std::abs(y - 4) < 0.05 ? 0 : 1;
}
