// Each toolchain on small kernels: what it compiles, what it declines, what it says of bad source. A toolchain that is
// not installed is skipped with a message, or is a failure under ROWJIT_TESTS_REQUIRE_TOOLCHAINS=1.
#include "compiler/toolchain/toolchain.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <thread>

#include "compiler/toolchain/cubin_info.h"
#include "rowjit/error.h"

namespace rowjit {
namespace {

const char* const kCudaText = R"(
extern "C" __global__ void __launch_bounds__(128) reverse(const float* a, float* b, long n) {
    __shared__ float tile[128];
    const long i = blockIdx.x * 128L + threadIdx.x;
    tile[threadIdx.x] = a[i];
    __syncthreads();
    if (i < n) b[i] = tile[127 - threadIdx.x] * 2.f;
}
extern "C" __global__ void fill(float* a) { a[threadIdx.x] = 1.f; }
)";

// 128 live values, which 32 registers cannot hold.
const char* const kCudaSpillText = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) spill(const float* a, float* b) {
    float x[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) x[i] = a[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 128; ++i) b[i * 1024 + threadIdx.x] = x[i] * x[127 - i];
}
)";

Source cuda_source() { return {kCudaText, {"reverse", "fill"}}; }

bool available(const Target& target) {
    const Offer<Toolchain> toolchain = find_toolchain(target);
    if (toolchain) return true;
    if (std::getenv("ROWJIT_TESTS_REQUIRE_TOOLCHAINS") != nullptr) {
        FAIL_CHECK(target.name << ": a toolchain is required here: " << toolchain.reason());
    } else {
        MESSAGE("SKIPPED for " << target.name << ": " << toolchain.reason());
    }
    return false;
}

Error compile_error(const Source& source, const Target& target) {
    try {
        compile_source(source, target);
    } catch (const Error& error) {
        return error;
    }
    FAIL("the source was accepted for " << target.name);
    std::abort();
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Target with_name(Target target, const char* name) {
    target.name = name;
    return target;
}

}  // namespace

TEST_CASE("NVRTC compiles a cubin for every NVIDIA target and its resources are read back") {
    for (const char* name : {"sm_80", "sm_90a", "sm_100a"}) {
        const Target target = find_target(name);
        if (!available(target)) continue;
        CAPTURE(name);
        const Artifact artifact = compile_source(cuda_source(), target);
        CHECK(artifact.target == name);
        CHECK(artifact.format == "cubin");
        CHECK(artifact.toolchain.starts_with("nvrtc "));
        CHECK(artifact.compile_ms > 0);
        REQUIRE(artifact.functions.size() == 2);

        const FunctionInfo& reverse = artifact.functions[0];
        CHECK(reverse.name == "reverse");
        CHECK(reverse.registers >= 4);
        CHECK(reverse.registers <= 32);
        CHECK(reverse.spill_bytes == 0);
        CHECK(reverse.shared_bytes == 512);
        CHECK(reverse.max_threads == 128);
        CHECK(reverse.kernarg_bytes == 24);
        REQUIRE(reverse.arguments.size() == 3);
        CHECK(reverse.arguments[2].offset_bytes == 16);
        CHECK(reverse.arguments[2].size_bytes == 8);

        const FunctionInfo& fill = artifact.functions[1];
        CHECK(fill.name == "fill");
        CHECK(fill.shared_bytes == 0);
        CHECK(fill.max_threads == 0);
        CHECK(fill.kernarg_bytes == 8);
    }
}

TEST_CASE("the spills of an NVIDIA kernel are read from its cubin") {
    for (const char* name : {"sm_80", "sm_90a", "sm_100a"}) {
        const Target target = find_target(name);
        if (!available(target)) continue;
        CAPTURE(name);
        const Artifact artifact = compile_source({kCudaSpillText, {"spill"}}, target);
        CHECK(artifact.functions.at(0).registers == 32);
        CHECK(artifact.functions.at(0).spill_bytes >= 256);
        CHECK(artifact.functions.at(0).max_threads == 1024);
    }
}

TEST_CASE("an architecture NVRTC does not know is declined with those it knows") {
    const Target known = find_target("sm_90a");
    if (!available(known)) return;
    for (const char* name : {"sm_42", "sm_90x", "sm_", "sm_90a:foo", "hopper", ""}) {
        CAPTURE(name);
        const Offer<Toolchain> toolchain = find_toolchain(with_name(known, name));
        REQUIRE_FALSE(toolchain);
        CHECK(contains(toolchain.reason(), "sm_90"));
        CHECK(contains(toolchain.reason(), "does not know"));
        CHECK(compile_error(cuda_source(), with_name(known, name)).code() == ErrorCode::kEnvironment);
    }
}

TEST_CASE("source that NVRTC refuses is a compile error showing the numbered line") {
    const Target target = find_target("sm_90a");
    if (!available(target)) return;
    const Error error = compile_error({"\nextern \"C\" __global__ void k() {\n    nonsense = 1;\n}\n", {"k"}}, target);
    CHECK(error.code() == ErrorCode::kCompile);
    CHECK(contains(error.what(), "kernel.cu(3): error"));
    CHECK(contains(error.what(), "     3 |     nonsense = 1;"));
}

TEST_CASE("eight threads compile at once for NVIDIA and get the bytes one thread gets") {
    const Target target = find_target("sm_90a");
    if (!available(target)) return;
    const std::string expected = compile_source(cuda_source(), target).binary;
    std::vector<std::string> binaries(8);
    std::vector<std::thread> threads;
    for (std::string& binary : binaries) {
        threads.emplace_back([&] { binary = compile_source(cuda_source(), target).binary; });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& binary : binaries) CHECK(binary == expected);
}

TEST_CASE("a cubin cut short or with damaged bytes is declined or read, never followed out of bounds") {
    const Target target = find_target("sm_90a");
    if (!available(target)) return;
    const std::string whole = compile_source(cuda_source(), target).binary;
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const std::string cut = whole.substr(0, size);  // its own allocation, so that a sanitizer sees its end
        const Offer<std::vector<FunctionInfo>> functions = cubin_info(cut);
        if (functions) CHECK(functions->size() <= 2);
    }
    for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const char damage : {'\xff', '\x7f', '\0'}) {
            std::string damaged = whole;
            damaged[at] = damage;
            const Offer<std::vector<FunctionInfo>> functions = cubin_info(damaged);
            if (!functions) CHECK_FALSE(functions.reason().empty());
        }
    }
    CHECK_FALSE(cubin_info(""));
    CHECK_FALSE(cubin_info("no ELF at all, but longer than the header of one would be, by some bytes and more"));
}

TEST_CASE("no source toolchain offers to compile for the CPU") {
    const Offer<Toolchain> toolchain = find_toolchain(find_target("native"));
    REQUIRE_FALSE(toolchain);
    CHECK(contains(toolchain.reason(), "LLVM"));
}

}  // namespace rowjit
