// The HIP device against a stub runtime. What it shares with CUDA is tested in cuda_device_test.cpp; here is what
// differs, and that each call reaches HIP's own symbol.
#include <doctest/doctest.h>

#include <thread>

#include "rowjit/error.h"
#include "runtime/device.h"
#include "tests/runtime/device_fixture.h"

using namespace rowjit;

namespace {

class StubHip : public StubbedDriver {
  public:
    explicit StubHip(const char* library = ROWJIT_STUB_HIP) : StubbedDriver("ROWJIT_HIP_DRIVER", library) {
        (*this)->driver_version = 60342134;
        (*this)->device_name = "AMD Instinct MI300X (gfx9)";  // a marketing name may hold what is looked for
        (*this)->architecture = "gfx942:sramecc+:xnack-";
    }
};

}  // namespace

TEST_CASE("a HIP device's target keeps the feature suffix and takes the driver's numbers") {
    StubHip stub;
    stub->attributes[63] = 228;
    stub->attributes[10002] = 65536;
    const auto device = open_device("hip:0");
    CHECK(device->description() == "hip:0 AMD Instinct MI300X (gfx9), driver 6.3");
    CHECK(device->target().name == "gfx942:sramecc+:xnack-");
    CHECK(device->target().warp_size == 64);
    CHECK(device->target().sm_count == 228);
    CHECK(device->target().bandwidth_gbps == find_target("gfx942").bandwidth_gbps);
}

TEST_CASE("the architecture's name is found in the device properties of ROCm 5 too") {
    StubHip stub(ROWJIT_STUB_HIP_OLD);
    stub->architecture = "gfx90a:sramecc+:xnack-";
    CHECK(open_device("hip:0")->target().name == "gfx90a:sramecc+:xnack-");
}

TEST_CASE("an AMD GPU that no target covers is refused with the supported ones") {
    StubHip stub;
    stub->architecture = "gfx803";
    CHECK_THROWS_WITH_AS(open_device("hip:0"),
                         "hip:0 AMD Instinct MI300X (gfx9) has gfx803, which no target covers; supported: gfx90a, "
                         "gfx942, gfx1100, gfx1201",
                         Error);
    CHECK(available_devices() == std::vector<std::string>{"cpu"});
}

TEST_CASE("every HIP device the runtime reports is available") {
    StubHip stub;
    stub->device_count = 2;
    CHECK(available_devices() == std::vector<std::string>{"hip:0", "hip:1", "cpu"});
}

TEST_CASE("a code object is loaded, launched and unloaded through HIP's symbols") {
    StubHip stub;
    {
        const auto device = open_device("hip:0");
        stub.take_calls();
        const auto module = device->load(stub_artifact("gfx942"));
        CHECK(stub.take_calls() == "hipStreamIsCapturing 0\nhipModuleLoadData image\nhipModuleGetFunction norm\n");
        int value = 42;
        void* arguments[] = {&value};
        CHECK(device->launch(module->functions()[0], {.grid = 3, .block = 256, .shared_bytes = 64}, nullptr,
                             arguments) == nullptr);
        CHECK(stub.take_calls() == "hipModuleLaunchKernel 64 3 1 1 256 1 1 64 0 42\n");
    }
    CHECK(stub.take_calls() == "hipModuleUnload 48\n");
}

TEST_CASE("a thread's own HIP device is current again after a launch on another") {
    StubHip stub;
    stub->device_count = 2;
    const auto second = open_device("hip:1");
    std::thread([&] {
        int value = 42;
        void* arguments[] = {&value};
        stub.take_calls();
        second->launch({reinterpret_cast<void*>(64)}, {}, nullptr, arguments);
        CHECK(stub.take_calls() == "hipSetDevice 1\nhipModuleLaunchKernel 64 1 1 1 1 1 1 0 0 42\nhipSetDevice 0\n");
    }).join();
}

TEST_CASE("AMD has no clusters, and a launch of them is refused") {
    StubHip stub;
    const auto device = open_device("hip:0");
    int value = 42;
    void* arguments[] = {&value};
    CHECK(device->launch({reinterpret_cast<void*>(64)}, {.cluster = 2}, nullptr, arguments) != nullptr);
}

TEST_CASE("a HIP failure carries HIP's name and text for it") {
    StubHip stub;
    const auto device = open_device("hip:0");
    stub->results["hipModuleLoadData"] = 209;
    CHECK_THROWS_WITH_AS(device->load(stub_artifact("gfx1100")), doctest::Contains("hipErrorStub (stub error 209)"),
                         Error);
}

TEST_CASE("memory and streams reach HIP's symbols") {
    StubHip stub;
    const auto device = open_device("hip:0");
    const int value = 7;
    int back = 0;
    stub.take_calls();
    void* a = device->allocate(sizeof value);
    const StreamHandle stream = device->create_stream();
    device->copy_to_device(a, &value, sizeof value);
    device->copy_to_host(&back, a, sizeof back);
    device->fill(a, 0, sizeof value, stream);
    device->synchronize(stream);
    device->destroy_stream(stream);
    device->release(a);
    CHECK(back == 7);
    CHECK(stub.take_calls() ==
          "hipMalloc 4\n"
          "hipStreamCreateWithFlags 0\n"
          "hipMemcpyHtoD 4\n"
          "hipStreamSynchronize 0\n"
          "hipMemcpyDtoH 4\n"
          "hipMemsetD8Async 0 4 80\n"
          "hipStreamSynchronize 80\n"
          "hipStreamDestroy 80\n"
          "hipFree\n");
}
