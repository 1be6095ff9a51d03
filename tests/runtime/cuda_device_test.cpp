// The CUDA device against a stub driver: which calls it makes, in which order, and what it says when one fails.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "compiler/compile.h"
#include "rowjit/engine.h"
#include "rowjit/error.h"
#include "rowjit/graph.h"
#include "runtime/device.h"
#include "runtime/launch_plan.h"
#include "tests/runtime/device_fixture.h"

using namespace rowjit;

namespace {

class StubCuda : public StubbedDriver {
  public:
    explicit StubCuda(const char* library = ROWJIT_STUB_CUDA) : StubbedDriver("ROWJIT_CUDA_DRIVER", library) {
        set_capability(9, 0);
        (*this)->driver_version = 13000;
        (*this)->device_name = "NVIDIA H200";
    }

    void set_capability(int major, int minor) {
        (*this)->attributes[75] = major;
        (*this)->attributes[76] = minor;
    }
};

// Counts its repetitions.
struct Counted : TimedWork {
    mutable int queued = 0;
    void queue(int repetition) const override { queued += repetition == queued ? 1 : 1000; }
};

// Runs `body` in a thread that has no context yet.
template <class Body>
void in_new_thread(const Body& body) {
    std::thread(body).join();
}

std::string error_of(const std::string& device_name) {
    try {
        open_device(device_name);
    } catch (const Error& error) {
        return error.what();
    }
    return "opened";
}

}  // namespace

TEST_CASE("a CUDA device describes itself with the driver's own numbers") {
    StubCuda stub;
    stub->attributes[16] = 114;       // multiprocessors
    stub->attributes[97] = 232448;    // shared memory per block, opt-in
    stub->attributes[38] = 60 << 20;  // L2
    stub->attributes[36] = 3201000;   // memory clock, kHz
    stub->attributes[37] = 6144;      // memory bus, bits
    const auto device = open_device("cuda:0");
    CHECK(device->description() == "cuda:0 NVIDIA H200, driver 13.0");
    CHECK(device->target().name == "sm_90a");
    CHECK(device->target().sm_count == 114);
    CHECK(device->target().shared_bytes_per_block == 232448);
    CHECK(device->target().l2_bytes == 60 << 20);
    CHECK(device->target().bandwidth_gbps == doctest::Approx(4278).epsilon(0.001));
    CHECK(device->target().clusters);
}

TEST_CASE("a number the CUDA driver does not know stays the target's") {
    StubCuda stub;
    CHECK(open_device("cuda:0")->target().sm_count == find_target("sm_90a").sm_count);
    CHECK(open_device("cuda:0")->target().bandwidth_gbps == find_target("sm_90a").bandwidth_gbps);
}

TEST_CASE("a GPU gets the newest target whose code runs on it") {
    StubCuda stub;
    stub.set_capability(8, 9);
    CHECK(open_device("cuda:0")->target().name == "sm_80");
    stub.set_capability(10, 0);
    CHECK(open_device("cuda:0")->target().name == "sm_100a");
}

TEST_CASE("a GPU that only architecture-specific code exists for is refused with the supported targets") {
    StubCuda stub;
    stub.set_capability(10, 3);
    CHECK(error_of("cuda:0") ==
          "cuda:0 NVIDIA H200 has compute capability 10.3, which no target covers; supported: sm_80, sm_90a, sm_100a");
    CHECK(available_devices() == std::vector<std::string>{"cpu"});
}

TEST_CASE("a CUDA device that is not there is an error with the number there are") {
    StubCuda stub;
    CHECK_THROWS_WITH_AS(open_device("cuda:1"), doctest::Contains("reports 1 device"), Error);
}

TEST_CASE("a CUDA driver that finds no GPU is an error with the driver's reason") {
    StubCuda stub;
    stub->results["cuInit"] = 100;
    CHECK_THROWS_WITH_AS(open_device("cuda:0"),
                         doctest::Contains("CUDA_ERROR_STUB (stub error 100); check that nvidia-smi"), Error);
    CHECK(available_devices() == std::vector<std::string>{"cpu"});
}

TEST_CASE("every CUDA device the driver reports is available") {
    StubCuda stub;
    stub->device_count = 2;
    CHECK(available_devices() == std::vector<std::string>{"cuda:0", "cuda:1", "cpu"});
    CHECK(stub.take_calls() == "cuInit 0\n");  // no context is made
}

TEST_CASE("loading resolves each function and raises its dynamic shared memory to what its own leaves of the maximum") {
    StubCuda stub;
    stub->attributes[97] = 200000;
    stub->static_shared_bytes = 1000;
    in_new_thread([&] {
        const auto device = open_device("cuda:0");
        stub.take_calls();
        const auto module = device->load(stub_artifact("sm_90a"), reinterpret_cast<StreamHandle>(7));
        CHECK(stub.take_calls() ==
              "cuCtxSetCurrent 16\n"
              "cuStreamIsCapturing 7\n"
              "cuLibraryLoadData image 0 0\n"
              "cuLibraryGetKernel norm\n"
              "cuKernelGetFunction 65\n"
              "cuFuncSetAttribute 64 8 199000\n"
              "cuFuncSetAttribute 64 14 1\n");
        REQUIRE(module->functions().size() == 1);
        CHECK(module->functions()[0].handle == reinterpret_cast<void*>(64));
    });
    CHECK(stub.take_calls() == "cuLibraryUnload 48\ncuDevicePrimaryCtxRelease_v2 0\n");
}

TEST_CASE("a driver without the library entries loads a module instead") {
    StubCuda stub(ROWJIT_STUB_CUDA_OLD);
    in_new_thread([&] {
        const auto device = open_device("cuda:0");
        const auto module = device->load(stub_artifact("sm_90a"));
        CHECK(module->functions()[0].handle == reinterpret_cast<void*>(64));
        CHECK(stub.take_calls().find("cuModuleLoadData image\ncuModuleGetFunction norm\n") != std::string::npos);
    });
    CHECK(stub.take_calls() == "cuModuleUnload 48\ncuDevicePrimaryCtxRelease_v2 0\n");
}

TEST_CASE("a module outlives its device") {
    StubCuda stub;
    std::unique_ptr<Module> module = open_device("cuda:0")->load(stub_artifact("sm_90a"));
    CHECK(stub.take_calls().find("Release") == std::string::npos);
    module.reset();
    CHECK(stub.take_calls().ends_with("cuLibraryUnload 48\ncuDevicePrimaryCtxRelease_v2 0\n"));
}

TEST_CASE("an image the driver refuses is an error naming the image and the device") {
    StubCuda stub;
    stub->results["cuLibraryLoadData"] = 209;
    const auto device = open_device("cuda:0");
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("sm_100a")),
                         "cuda:0 NVIDIA H200, driver 13.0 refuses the cubin that nvrtc 13.0 compiled for sm_100a: "
                         "CUDA_ERROR_STUB (stub error 209); compile for sm_90a, or install a driver no older than the "
                         "compiler",
                         Error);
}

TEST_CASE("an image that the driver refuses only when a function is asked for is still called refused") {
    StubCuda stub;
    stub->results["cuLibraryGetKernel"] = 200;
    const auto device = open_device("cuda:0");
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("sm_100a")), doctest::Contains("refuses the cubin"), Error);
    CHECK(stub.take_calls().ends_with("cuLibraryUnload 48\n"));
}

TEST_CASE("a function that the image lacks is an error, and the image is unloaded") {
    StubCuda stub;
    stub->results["cuLibraryGetKernel"] = 500;
    const auto device = open_device("cuda:0");
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("sm_90a")), doctest::Contains("has no function norm"), Error);
    CHECK(stub.take_calls().ends_with("cuLibraryUnload 48\n"));
}

TEST_CASE("loading for a stream that is being captured is refused before the driver is asked to load") {
    StubCuda stub;
    stub->capture_status = 1;
    const auto device = open_device("cuda:0");
    try {
        device->load(stub_artifact("sm_90a"));
        FAIL("loaded");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kLaunch);
        CHECK(std::string(error.what()).find("before the capture begins") != std::string::npos);
    }
    CHECK(stub.take_calls().find("cuLibraryLoadData") == std::string::npos);
}

TEST_CASE("loading while any other stream is being captured is reported as a capture, not as a bad image") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    stub->results["cuStreamIsCapturing"] = 906;  // another stream, seen from the default stream
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("sm_90a")), doctest::Contains("being captured"), Error);
    stub->results = {{"cuLibraryLoadData", 900}};
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("sm_90a")), doctest::Contains("being captured"), Error);
}

TEST_CASE("a launch passes geometry, stream and arguments on, in one driver call") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    in_new_thread([&] {
        int value = 42;
        void* arguments[] = {&value};
        const LaunchGeometry geometry = {.grid = 5, .block = 128, .shared_bytes = 1024};
        const Function function = {reinterpret_cast<void*>(64)};
        stub.take_calls();
        CHECK(device->launch(function, geometry, reinterpret_cast<StreamHandle>(80), arguments) == nullptr);
        CHECK(stub.take_calls() == "cuCtxSetCurrent 16\ncuLaunchKernel 64 5 1 1 128 1 1 1024 80 42\n");
        CHECK(device->launch(function, geometry, reinterpret_cast<StreamHandle>(80), arguments) == nullptr);
        CHECK(stub.take_calls() == "cuLaunchKernel 64 5 1 1 128 1 1 1024 80 42\n");  // the context is still there
    });
}

TEST_CASE("a launch of clusters carries the cluster's size as a launch attribute") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    int value = 42;
    void* arguments[] = {&value};
    const LaunchGeometry geometry = {.grid = 8, .block = 256, .shared_bytes = 512, .cluster = 4};
    CHECK(device->launch({reinterpret_cast<void*>(64)}, geometry, reinterpret_cast<StreamHandle>(80), arguments) ==
          nullptr);
    CHECK(stub.take_calls().ends_with("cuLaunchKernelEx 64 8 256 512 80 1 4 4 42\n"));
}

TEST_CASE("a launch that overlaps the one before it says so, where the driver can capture it") {
    int value = 42;
    void* arguments[] = {&value};
    const LaunchGeometry geometry = {.grid = 8, .block = 256, .shared_bytes = 512, .overlaps = true};
    const Function function = {reinterpret_cast<void*>(64)};
    const auto stream = reinterpret_cast<StreamHandle>(80);
    {
        StubCuda stub;
        const auto device = open_device("cuda:0");
        CHECK(device->launch(function, geometry, stream, arguments) == nullptr);
        CHECK(stub.take_calls().ends_with("cuLaunchKernelEx 64 8 256 512 80 1 6 1 42\n"));
    }
    StubCuda old(ROWJIT_STUB_CUDA_OLD);
    const auto device = open_device("cuda:0");
    CHECK(device->launch(function, geometry, stream, arguments) == nullptr);
    CHECK(old.take_calls().ends_with("cuLaunchKernel 64 8 1 1 256 1 1 512 80 42\n"));
}

TEST_CASE("the driver says how many clusters run at the same time, and one too old for it nothing") {
    const LaunchGeometry geometry = {.grid = 128, .block = 256, .cluster = 16};
    const Function function = {reinterpret_cast<void*>(64)};
    {
        StubCuda stub;
        const auto device = open_device("cuda:0");
        CHECK(device->clusters_at_once(function, geometry) == 7);
        CHECK(stub.take_calls().ends_with("cuOccupancyMaxActiveClusters 64 256 16\n"));
        CHECK(device->clusters_at_once(function, {.grid = 128, .block = 256}) == 0);
    }
    StubCuda old(ROWJIT_STUB_CUDA_OLD);
    CHECK(open_device("cuda:0")->clusters_at_once(function, geometry) == 0);
}

TEST_CASE("blocks that sum over their rows are as many as have room with the registers they took") {
    StubCuda stub;
    stub->attributes[16] = 132;  // multiprocessors
    const std::shared_ptr<DeviceImpl> device = open_device("cuda:0");
    const Graph graph = Graph::parse("rows tokens\ninput x: f32[tokens, 1024]\noutput s = sum(x, tokens)\n");
    const Program program = compile(*graph.data(), device->target());
    const Schedule& schedule = program.steps.at(0).kernel.schedule;
    REQUIRE(schedule.blocks_per_sm > 2);
    REQUIRE(program.steps.at(0).kernel.block_threads() == 256);
    const auto parts = [&](int registers) {
        std::vector<LoadedStep> loaded(program.steps.size(), {nullptr, {reinterpret_cast<void*>(64)}, registers});
        const Executable executable(std::make_shared<LaunchPlan>(program, std::move(loaded), device));
        Arguments arguments = executable.arguments();
        arguments.rows("tokens", 1 << 20);
        return executable.workspace_bytes(arguments) / (1024 * sizeof(float));
    };
    const auto staying = static_cast<std::size_t>(132 * schedule.blocks_per_sm);
    CHECK(parts(0) == staying);  // nobody says
    CHECK(parts(32) == staying);
    CHECK(parts(128) == 132 * 2);
    CHECK(parts(255) == 132);
}

TEST_CASE("a driver too old for clusters refuses a launch of them") {
    StubCuda stub(ROWJIT_STUB_CUDA_OLD);
    const auto device = open_device("cuda:0");
    int value = 42;
    void* arguments[] = {&value};
    const char* refusal = device->launch({reinterpret_cast<void*>(64)}, {.grid = 8, .cluster = 4}, nullptr, arguments);
    REQUIRE(refusal != nullptr);
    CHECK(std::string(refusal) == "stub error 801");
}

TEST_CASE("a launch that the driver refuses returns the driver's text") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    stub->results["cuLaunchKernel"] = 1;
    int value = 42;
    void* arguments[] = {&value};
    const char* refusal = device->launch({reinterpret_cast<void*>(64)}, {}, nullptr, arguments);
    REQUIRE(refusal != nullptr);
    CHECK(std::string(refusal) == "stub error 1");
}

TEST_CASE("a launch of no blocks makes no driver call") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    stub.take_calls();
    CHECK(device->launch({reinterpret_cast<void*>(64)}, {.grid = 0}, nullptr, nullptr) == nullptr);
    CHECK(stub.take_calls().empty());
}

TEST_CASE("a thread that has another device current gets it back after a launch") {
    StubCuda stub;
    stub->device_count = 2;
    const auto first = open_device("cuda:0");
    const auto second = open_device("cuda:1");
    in_new_thread([&] {
        int value = 42;
        void* arguments[] = {&value};
        first->launch({reinterpret_cast<void*>(64)}, {}, nullptr, arguments);
        stub.take_calls();
        second->launch({reinterpret_cast<void*>(64)}, {}, nullptr, arguments);
        CHECK(stub.take_calls() == "cuCtxSetCurrent 17\ncuLaunchKernel 64 1 1 1 1 1 1 0 0 42\ncuCtxSetCurrent 16\n");
    });
}

TEST_CASE("memory goes to the device, across it and back") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    const char text[8] = "rowjit!";
    char back[8] = {};
    void* a = device->allocate(sizeof text);
    void* b = device->allocate(sizeof text);
    stub.take_calls();
    device->copy_to_device(a, text, sizeof text);
    device->copy_on_device(b, a, sizeof text, reinterpret_cast<StreamHandle>(80));
    device->fill(b, '_', 3, reinterpret_cast<StreamHandle>(80));
    device->copy_to_host(back, b, sizeof back);
    CHECK(std::string(back) == "___jit!");
    CHECK(stub.take_calls() ==
          "cuMemcpyHtoD_v2 8\n"
          "cuStreamSynchronize 0\n"
          "cuMemcpyDtoDAsync_v2 8 80\n"
          "cuMemsetD8Async 95 3 80\n"
          "cuMemcpyDtoH_v2 8\n");
    device->release(a);
    device->release(b);
}

TEST_CASE("nothing is allocated, copied or freed for no bytes") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    stub.take_calls();
    void* nothing = device->allocate(0);
    CHECK(nothing == nullptr);
    device->copy_to_device(nothing, nullptr, 0);
    device->copy_on_device(nothing, nothing, 0, nullptr);
    device->copy_to_host(nullptr, nothing, 0);
    device->fill(nothing, 0, 0, nullptr);
    device->release(nothing);
    CHECK(stub.take_calls().empty());
}

TEST_CASE("memory that the GPU does not have is an error with the bytes asked and free") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    stub->results["cuMemAlloc_v2"] = 2;
    CHECK_THROWS_WITH_AS(device->allocate(5000),
                         "cuda:0 NVIDIA H200, driver 13.0: cannot allocate 5000 bytes, 1000 of 4000 are free: "
                         "CUDA_ERROR_OUT_OF_MEMORY (stub error 2); use fewer rows at a time, or free device memory",
                         Error);
}

TEST_CASE("a kernel that failed is reported by the next wait") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    stub->results["cuStreamSynchronize"] = 700;
    CHECK_THROWS_WITH_AS(device->synchronize(nullptr), doctest::Contains("stub error 700"), Error);
}

TEST_CASE("timing puts a pair of events around each repetition and makes them only once") {
    StubCuda stub;
    const auto device = open_device("cuda:0");
    const StreamHandle stream = device->create_stream();
    stub.take_calls();
    Counted work;
    CHECK(device->time_ms(stream, 2, work) == std::vector<double>{1, 1});
    CHECK(work.queued == 2);
    const std::string measured =
        "cuEventRecord 80\ncuEventRecord 80\ncuEventRecord 80\ncuEventRecord 80\ncuStreamSynchronize 80\n"
        "cuEventElapsedTime\ncuEventElapsedTime\n";
    CHECK(stub.take_calls() == "cuEventCreate 0\ncuEventCreate 0\ncuEventCreate 0\ncuEventCreate 0\n" + measured);
    device->time_ms(stream, 2, Counted());
    CHECK(stub.take_calls() == measured);
    device->destroy_stream(stream);
    CHECK(stub.take_calls() == "cuStreamDestroy_v2 80\n");
}
