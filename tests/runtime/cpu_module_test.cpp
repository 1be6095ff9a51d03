// A compiled CPU kernel through the device: loaded, launched over row blocks on several threads, timed.
#include <doctest/doctest.h>

#include <algorithm>

#include "rowjit/error.h"
#include "runtime/device.h"
#include "tests/compiler/cpu_kernel.h"
#include "tests/runtime/device_fixture.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kColumns = 64;

// y = 3 · x, one row a block
Artifact triple(const Target& target) {
    KernelWriter w("triple", kColumns, 16);
    const int x = w.tensor("x", Dtype::kF32, {w.rows(), w.columns()});
    const int y = w.tensor("y", Dtype::kF32, {w.rows(), w.columns()}, true);
    w.open_loop();
    w.store(y, w.map(Op::kMul, {w.load(x), w.constant(Dtype::kF32, 3)}));
    w.close_loop();
    return compile_cpu(w.kernel(), target);
}

}  // namespace

TEST_CASE("a compiled CPU kernel runs over every row on the device's threads") {
    const ScopedVariable threads("ROWJIT_CPU_THREADS", "3");
    const auto device = open_device("cpu");
    const auto module = device->load(triple(device->target()));
    REQUIRE(module->functions().size() == 1);

    std::int64_t rows = 37;
    std::int64_t stride = kColumns;
    std::vector<float> x(static_cast<std::size_t>(rows * kColumns));
    std::vector<float> y(x.size(), -1);
    std::vector<float> expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = static_cast<float>(i);
        expected[i] = 3 * x[i];
    }
    void* x_address = x.data();
    void* y_address = y.data();
    void* arguments[] = {&rows, static_cast<void*>(&x_address), &stride, static_cast<void*>(&y_address), &stride};
    for (const bool last_first : {false, true}) {
        const LaunchGeometry geometry = {.grid = static_cast<std::uint32_t>(rows), .last_first = last_first};
        std::ranges::fill(y, -1);
        CHECK(device->launch(module->functions()[0], geometry, nullptr, arguments) == nullptr);
        CHECK(y == expected);
    }
}

TEST_CASE("the CPU device compiles for this processor's own features") {
    CHECK(open_device("cpu")->target().cpu_features == host_cpu_target().cpu_features);
}

TEST_CASE("a binary that is no CPU object is refused when it is loaded") {
    const auto device = open_device("cpu");
    CHECK_THROWS_AS(device->load(stub_artifact("native")), Error);
}
