// The engine while the caller's stream is being captured, against a stub driver: a kernel that is not loaded yet is
// refused, one that is loaded is not. The kernels are real, so these cases need a toolchain for sm_90a.
#include <doctest/doctest.h>

#include "base/environment.h"
#include "compiler/toolchain/toolchain.h"
#include "rowjit/engine.h"
#include "tests/runtime/device_fixture.h"

using namespace rowjit;

namespace {

constexpr std::uintptr_t kStream = 7;

// An engine on a stub H200; false where nothing compiles for it.
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

Graph doubled() {
    Graph g;
    g.output("y", g.input("x", f32, {g.rows("t"), 64}) * 2.0);
    return g;
}

Stream stream() { return reinterpret_cast<Stream>(kStream); }  // NOLINT(performance-no-int-to-ptr): a stub's handle

}  // namespace

TEST_CASE("a kernel that is not loaded is refused while the caller's stream is being captured") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    Engine engine = StubbedEngine::engine();
    on.stub->capture_status = 1;
    try {
        engine.compile(doubled(), stream());
        FAIL("compiled");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kLaunch);
        CHECK_MESSAGE(std::string(error.what()).find("before the capture begins") != std::string::npos, error.what());
    }
    const std::string calls = on.stub.take_calls();
    CHECK(calls.find("cuStreamIsCapturing 7\n") != std::string::npos);
    CHECK(calls.find("cuLibraryLoadData") == std::string::npos);
}

TEST_CASE("a graph compiled before the capture is ready during it, and asks the driver nothing") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    Engine engine = StubbedEngine::engine();
    engine.compile(doubled(), stream());
    on.stub->capture_status = 1;
    on.stub.take_calls();
    CHECK(engine.compile(doubled(), stream()).kernel_count() == 1);
    CHECK(on.stub.take_calls().empty());
}

TEST_CASE("after a capture that refused it, a kernel loads, without being compiled again") {
    StubbedEngine on;
    if (!on.can_compile()) return;
    Engine engine = StubbedEngine::engine();
    on.stub->capture_status = 1;
    CHECK_THROWS_AS(engine.compile(doubled(), stream()), Error);
    on.stub->capture_status = 0;
    CHECK(engine.compile(doubled(), stream()).kernel_count() == 1);
    CHECK(engine.statistics().compiled == 1);
}
