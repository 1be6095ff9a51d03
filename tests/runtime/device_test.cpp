// Opening devices by name, and the CPU as a device.
#include "runtime/device.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "rowjit/error.h"
#include "runtime/cpu/device.h"
#include "tests/runtime/device_fixture.h"

using namespace rowjit;

namespace {

// A CPU kernel as the CPU emitter makes them: arguments[0] points at the address of an array, arguments[1] at a factor.
void multiply(void* const* arguments, std::int64_t begin, std::int64_t end) {
    auto* values = *static_cast<std::int64_t**>(arguments[0]);
    const std::int64_t factor = *static_cast<std::int64_t*>(arguments[1]);
    for (std::int64_t i = begin; i < end; ++i) values[i] *= factor;
}

Function cpu_function(CpuKernel kernel) { return {reinterpret_cast<void*>(kernel)}; }

std::vector<std::int64_t> tripled_on(DeviceImpl& device, std::uint32_t count) {
    std::vector<std::int64_t> values(count);
    std::iota(values.begin(), values.end(), 0);
    std::int64_t* address = values.data();
    std::int64_t factor = 3;
    void* arguments[] = {&address, &factor};
    CHECK(device.launch(cpu_function(multiply), {.grid = count}, nullptr, arguments) == nullptr);
    return values;
}

std::vector<std::int64_t> tripled(std::uint32_t count) {
    std::vector<std::int64_t> values(count);
    for (std::uint32_t i = 0; i < count; ++i) values[i] = 3 * i;
    return values;
}

// An embedder's pool: counts its jobs and runs them in two halves, the second first.
struct OwnPool {
    int jobs = 0;
    static void run(void* context, std::int64_t count, RangeBody body, void* body_context) {
        ++static_cast<OwnPool*>(context)->jobs;
        body(body_context, count / 2, count);
        body(body_context, 0, count / 2);
    }
};

struct Sleep : TimedWork {
    void queue(int repetition) const override { std::this_thread::sleep_for(std::chrono::milliseconds(repetition)); }
};

}  // namespace

TEST_CASE("without a GPU driver the CPU is the only device") {
    const WithoutDrivers none;
    CHECK(available_devices() == std::vector<std::string>{"cpu"});
}

TEST_CASE("a CUDA device without a driver is an error that names libcuda.so.1 and the remedy") {
    const WithoutDrivers none;
    try {
        open_device("cuda:0");
        FAIL("opened");
    } catch (const Error& error) {
        const std::string message = error.what();
        CHECK(error.code() == ErrorCode::kEnvironment);
        CHECK(message.find("libcuda.so.1") != std::string::npos);
        CHECK(message.find("install the NVIDIA driver") != std::string::npos);
        CHECK(message.find("ROWJIT_CUDA_DRIVER") != std::string::npos);
    }
}

TEST_CASE("a HIP device without a runtime is an error that names libamdhip64.so and the remedy") {
    const WithoutDrivers none;
    CHECK_THROWS_WITH_AS(open_device("hip:0"), doctest::Contains("install ROCm (it ships libamdhip64.so)"), Error);
}

TEST_CASE("a driver library that lacks an entry point is declined by the symbol's name") {
    const ScopedVariable hip("ROWJIT_HIP_DRIVER", ROWJIT_STUB_CUDA);
    CHECK_THROWS_WITH_AS(open_device("hip:0"), doctest::Contains("has no hipInit"), Error);
}

TEST_CASE("a name that is no device is refused with the names that are") {
    for (const char* name : {"gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", ""}) {
        CAPTURE(name);
        CHECK_THROWS_WITH_AS(open_device(name), doctest::Contains("use cuda:N, hip:N or cpu"), Error);
    }
}

TEST_CASE("a launch on the CPU does every row block once, for any number of threads") {
    for (const char* threads : {"1", "2", "7"}) {
        CAPTURE(threads);
        const ScopedVariable variable("ROWJIT_CPU_THREADS", threads);
        const auto device = open_device("cpu");
        CHECK(device->target().sm_count == std::stoi(threads));
        for (const std::uint32_t count : {0U, 1U, 2U, 27U, 1000U}) CHECK(tripled_on(*device, count) == tripled(count));
    }
}

TEST_CASE("a number of CPU threads that is none is refused") {
    for (const char* threads : {"0", "-1", "two", "2x"}) {
        const ScopedVariable variable("ROWJIT_CPU_THREADS", threads);
        CHECK_THROWS_WITH_AS(open_device("cpu"), doctest::Contains("ROWJIT_CPU_THREADS"), Error);
    }
}

TEST_CASE("an embedder's pool runs the CPU's launches until it is taken away") {
    const auto device = open_device("cpu");
    OwnPool pool;
    set_parallel_for(*device, {OwnPool::run, &pool});
    CHECK(tripled_on(*device, 101) == tripled(101));
    CHECK(tripled_on(*device, 0).empty());
    CHECK(pool.jobs == 1);
    set_parallel_for(*device, {});
    CHECK(tripled_on(*device, 101) == tripled(101));
    CHECK(pool.jobs == 1);
}

TEST_CASE("CPU memory is aligned to 64 bytes and copied synchronously") {
    const auto device = open_device("cpu");
    auto* a = static_cast<char*>(device->allocate(13));
    auto* b = static_cast<char*>(device->allocate(13));
    CHECK(reinterpret_cast<std::uintptr_t>(a) % 64 == 0);
    device->copy_to_device(a, "twelve bytes", 13);
    device->copy_on_device(b, a, 13, nullptr);
    device->fill(b, '-', 6, nullptr);
    char back[13] = {};
    device->copy_to_host(back, b, 13);
    CHECK(std::string(back) == "------ bytes");
    device->release(a);
    device->release(b);
}

TEST_CASE("CPU memory that cannot be had is an error with the bytes asked and free") {
    const auto device = open_device("cpu");
    CHECK_THROWS_WITH_AS(device->allocate(SIZE_MAX), doctest::Contains("cannot allocate 18446744073709551615 bytes"),
                         Error);
    CHECK(device->allocate(0) == nullptr);
}

TEST_CASE("time on the CPU is a clock around each repetition") {
    const std::vector<double> times_ms = open_device("cpu")->time_ms(nullptr, 6, Sleep());
    REQUIRE(times_ms.size() == 6);
    CHECK(times_ms[5] >= 5);
    CHECK(times_ms[5] > times_ms[0]);
}
