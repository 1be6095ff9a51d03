// The CPU as a device in a build without LLVM: memory and launches work, loading says what is missing.
#include <doctest/doctest.h>

#include "rowjit/error.h"
#include "runtime/device.h"
#include "tests/runtime/device_fixture.h"

using namespace rowjit;

TEST_CASE("a CPU object cannot be loaded by a build without LLVM, which says so") {
    const auto device = open_device("cpu");
    CHECK(device->target().name == "native");
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("native")), doctest::Contains("-DROWJIT_LLVM=ON"), Error);
}
