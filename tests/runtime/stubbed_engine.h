// What the tests of the engine and the tuner on a stub GPU share. Kernels' keys name the compiler, so these tests need
// a toolchain for sm_90a, also where nothing is compiled.
#pragma once

#include <doctest/doctest.h>

#include "base/environment.h"
#include "compiler/toolchain/toolchain.h"
#include "rowjit/engine.h"
#include "tests/runtime/device_fixture.h"

namespace rowjit {

// A stub H200, and engines on it.
struct StubbedEngine {
    StubbedDriver stub{"ROWJIT_CUDA_DRIVER", ROWJIT_STUB_CUDA};

    StubbedEngine() {
        stub->attributes[75] = 9;
        stub->attributes[76] = 0;
        stub->driver_version = 13000;
    }

    bool can_compile() const {
        const auto toolchain = find_toolchain(find_target("sm_90a"));
        if (toolchain) return true;
        if (environment_flag("ROWJIT_TESTS_REQUIRE_TOOLCHAINS")) FAIL_CHECK(toolchain.reason());
        MESSAGE("SKIPPED: " << toolchain.reason());
        return false;
    }

    static Engine engine() { return Engine(Device("cuda:0"), {.cache_directory = "off", .use_tuning = false}); }
};

}  // namespace rowjit
