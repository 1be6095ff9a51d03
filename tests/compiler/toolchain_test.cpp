// Each toolchain on small kernels: what it compiles, what it declines, what it says of bad source. A toolchain that is
// not installed is skipped with a message, or is a failure under ROWJIT_TESTS_REQUIRE_TOOLCHAINS=1.
#include "compiler/toolchain/toolchain.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/environment.h"
#include "compiler/toolchain/child_program.h"
#include "compiler/toolchain/library_search.h"
#include "compiler/toolchain/nvrtc.h"
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

// Builtins only: clang is given no HIP header.
const char* const kHipText = R"(
#define KERNEL extern "C" __attribute__((global))
KERNEL __attribute__((amdgpu_flat_work_group_size(128, 128))) void reverse(const float* a, float* b, long n) {
    static __attribute__((shared)) float tile[128];
    const int lane = __builtin_amdgcn_workitem_id_x();
    const long i = __builtin_amdgcn_workgroup_id_x() * 128L + lane;
    tile[lane] = a[i];
    __builtin_amdgcn_s_barrier();
    if (i < n) b[i] = tile[127 - lane] * 2.f;
}
KERNEL __attribute__((amdgpu_flat_work_group_size(64, 64))) void fill(float* a) {
    a[__builtin_amdgcn_workitem_id_x()] = 1.f;
}
)";

// 96 live values, which 32 registers cannot hold.
const char* const kHipSpillText = R"(
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64), amdgpu_num_vgpr(32)))
void spill(const float* a, float* b) {
    const int lane = __builtin_amdgcn_workitem_id_x();
    float x[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) x[i] = a[i * 1024 + lane];
    __builtin_amdgcn_s_barrier();
#pragma unroll
    for (int i = 0; i < 96; ++i) b[i * 1024 + lane] = x[i] * x[(i + 1) % 96];
}
)";

// Every AMD target with the toolchain that is to compile it. Debian 12's hipRTC knows gfx90a and none of the others.
struct AmdCase {
    const char* target;
    const char* toolchain;
};
constexpr AmdCase kAmdCases[] = {
    {"gfx90a", "hiprtc"}, {"gfx90a", "clang"}, {"gfx942", "clang"}, {"gfx1100", "clang"}, {"gfx1201", "clang"},
};

Source hip_source() { return {kHipText, {"reverse", "fill"}}; }
Source cuda_source() { return {kCudaText, {"reverse", "fill"}}; }

bool available(const Target& target) {
    const Offer<Toolchain> toolchain = find_toolchain(target);
    if (toolchain) return true;
    if (environment_flag("ROWJIT_TESTS_REQUIRE_TOOLCHAINS")) {
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

// Sets a variable of the environment until the end of the scope.
class Setting {
  public:
    Setting(const char* name, const std::string& value) : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before;
        setenv(name, value.c_str(), 1);
    }
    Setting(const Setting&) = delete;
    Setting& operator=(const Setting&) = delete;
    ~Setting() {
        if (before_) {
            setenv(name_, before_->c_str(), 1);
        } else {
            unsetenv(name_);
        }
    }

  private:
    const char* name_;
    std::optional<std::string> before_;
};

// What one of the probes below says in a new process with the present environment: each library is looked for once per
// process.
std::string output_of_new_process(const char* target, const std::string& probe) {
    const Setting setting("TOOLCHAIN_TEST_TARGET", target);
    const PrivateFolder folder;
    const ProgramResult result =
        run_program({"/proc/self/exe", "--no-skip", "--test-case=" + probe}, folder, std::chrono::seconds(60));
    REQUIRE(result.succeeded);
    return result.output;
}

std::string answer_of_new_process(const char* target) { return output_of_new_process(target, "probe"); }

Target probed_target() {
    Target target = find_target("native");
    target.name = system_variable("TOOLCHAIN_TEST_TARGET");
    target.backend = target.name.starts_with("sm_") ? Backend::kCuda : Backend::kHip;
    return target;
}

Target with_name(Target target, std::string name) {
    target.name = std::move(name);
    return target;
}

}  // namespace

TEST_CASE("NVRTC compiles a cubin for every NVIDIA target and its resources are read back") {
    for (const char* name : {"sm_80", "sm_90a", "sm_100a"}) {
        const Target target = find_target(name);
        if (!available(target)) continue;
        CAPTURE(std::string(name));
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
        CAPTURE(std::string(name));
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
        CAPTURE(std::string(name));
        const Offer<Toolchain> toolchain = find_toolchain(with_name(known, name));
        REQUIRE_FALSE(toolchain);
        CHECK(contains(toolchain.reason(), "sm_90"));
        CHECK(contains(toolchain.reason(), "does not know"));
        CHECK(compile_error(cuda_source(), with_name(known, name)).code() == ErrorCode::kEnvironment);
    }
}

TEST_CASE("a kernel that NVRTC spills is compiled again without") {
    const Target target = find_target("sm_90a");
    if (!available(target)) return;
    const std::string spare = R"(extern "C" __global__ void spill(const float* a, float* b) { *b = *a; })";
    const std::string text = "#ifdef RJ_AVOID_SPILLS\n" + spare + "\n#else" + kCudaSpillText + "#endif\n";
    CHECK(compile_source({text, {"spill"}}, target).functions.at(0).spill_bytes == 0);
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

TEST_CASE("no source toolchain offers to compile for the CPU") {
    const Offer<Toolchain> toolchain = find_toolchain(find_target("native"));
    REQUIRE_FALSE(toolchain);
    CHECK(contains(toolchain.reason(), "LLVM"));
}

TEST_CASE("each AMD target is compiled and its resources are read back") {
    for (const AmdCase& amd : kAmdCases) {
        const Setting choice("ROWJIT_AMD_TOOLCHAIN", amd.toolchain);
        const Target target = find_target(amd.target);
        if (!available(target)) continue;
        CAPTURE(std::string(amd.target));
        CAPTURE(std::string(amd.toolchain));
        const Artifact artifact = compile_source(hip_source(), target);
        CHECK(artifact.target == amd.target);
        CHECK(artifact.format == "code-object");
        CHECK(artifact.toolchain.starts_with(amd.toolchain));
        REQUIRE(artifact.functions.size() == 2);

        const FunctionInfo& reverse = artifact.functions[0];
        CHECK(reverse.name == "reverse");
        CHECK(reverse.registers > 0);
        CHECK(reverse.registers <= 32);
        CHECK(reverse.scalar_registers > 0);
        CHECK(reverse.spill_bytes == 0);
        CHECK(reverse.spilled_registers == 0);
        CHECK(reverse.shared_bytes == 512);
        CHECK(reverse.max_threads == 128);
        CHECK(reverse.wave_size == target.warp_size);
        CHECK(reverse.kernarg_bytes >= 24);
        REQUIRE(reverse.arguments.size() >= 3);
        CHECK(reverse.arguments[0].kind == "global_buffer");
        CHECK(reverse.arguments[2].kind == "by_value");
        CHECK(reverse.arguments[2].offset_bytes == 16);
        CHECK(reverse.arguments[2].size_bytes == 8);
        CHECK(artifact.functions[1].name == "fill");
    }
}

TEST_CASE("the spills of an AMD kernel are read from its code object") {
    for (const AmdCase& amd : kAmdCases) {
        const Setting choice("ROWJIT_AMD_TOOLCHAIN", amd.toolchain);
        const Target target = find_target(amd.target);
        if (!available(target)) continue;
        CAPTURE(std::string(amd.target));
        CAPTURE(std::string(amd.toolchain));
        const Artifact artifact = compile_source({kHipSpillText, {"spill"}}, target);
        CHECK(artifact.functions.at(0).spill_bytes >= 128);
        CHECK(artifact.functions.at(0).spilled_registers >= 32);
    }
}

TEST_CASE("hipRTC compiles what it knows and clang the rest") {
    const Target old_target = find_target("gfx90a");
    const Target new_target = find_target("gfx1201");
    if (!available(old_target) || !available(new_target)) return;
    if (contains(find_toolchain(old_target)->name, "clang")) {
        MESSAGE("SKIPPED: no hipRTC, everything is clang's");
        return;
    }
    CHECK(find_toolchain(old_target)->name == "hiprtc");
    CHECK_FALSE(find_toolchain(new_target)->version.empty());
    const Setting choice("ROWJIT_AMD_TOOLCHAIN", "clang");
    CHECK(find_toolchain(old_target)->name == "clang");
}

TEST_CASE("a feature suffix reaches the AMD compilers") {
    for (const AmdCase& amd : kAmdCases) {
        if (!contains(amd.target, "gfx9")) continue;
        const Setting choice("ROWJIT_AMD_TOOLCHAIN", amd.toolchain);
        const Target target = with_name(find_target(amd.target), amd.target + std::string(":xnack+"));
        if (!available(target)) continue;
        CHECK(contains(compile_source(hip_source(), target).binary, std::string("--") + amd.target + ":xnack+"));
    }
}

TEST_CASE("an AMD architecture or feature that nobody knows is declined by both and aborts nothing") {
    for (const char* toolchain : {"hiprtc", "clang"}) {
        const Setting choice("ROWJIT_AMD_TOOLCHAIN", toolchain);
        const Target known = find_target("gfx90a");
        if (!available(known)) continue;
        for (const char* name :
             {"gfx9999", "gfx90a:foo+", "gfx90a:xnack", "gfx1030:xnack+", "gfx90a ", "sm_90a", "gfx942;touch x", ""}) {
            CAPTURE(std::string(toolchain));
            CAPTURE(std::string(name));
            const Offer<Toolchain> found = find_toolchain(with_name(known, name));
            REQUIRE_FALSE(found);
            CHECK(contains(found.reason(), toolchain));
            CHECK(contains(found.reason(), name));
            CHECK(compile_error(hip_source(), with_name(known, name)).code() == ErrorCode::kEnvironment);
        }
    }
}

TEST_CASE("source that an AMD compiler refuses is a compile error showing the numbered line and no temporary folder") {
    const Source source{"\nextern \"C\" __attribute__((global)) void k() {\n    nonsense = 1;\n}\n", {"k"}};
    for (const AmdCase& amd : kAmdCases) {
        const Setting choice("ROWJIT_AMD_TOOLCHAIN", amd.toolchain);
        if (!available(find_target(amd.target))) continue;
        const Error error = compile_error(source, find_target(amd.target));
        CHECK(error.code() == ErrorCode::kCompile);
        CHECK(contains(error.what(), ":3:5: error"));
        CHECK(contains(error.what(), "     3 |     nonsense = 1;"));
        CHECK_FALSE(contains(error.what(), "/tmp"));
    }
}

TEST_CASE("eight threads compile at once for AMD and get the bytes one thread gets") {
    for (const AmdCase& amd : {kAmdCases[0], kAmdCases[2]}) {
        const Setting choice("ROWJIT_AMD_TOOLCHAIN", amd.toolchain);
        const Target target = find_target(amd.target);
        if (!available(target)) continue;
        const std::string expected = compile_source(hip_source(), target).binary;
        std::vector<std::string> binaries(8);
        std::vector<std::thread> threads;
        for (std::string& binary : binaries) {
            threads.emplace_back([&] { binary = compile_source(hip_source(), target).binary; });
        }
        for (std::thread& thread : threads) thread.join();
        for (const std::string& binary : binaries) CHECK(binary == expected);
    }
}

TEST_CASE("clang leaves no temporary file behind, whether it accepts the source or not") {
    const Target target = find_target("gfx942");
    if (!available(target)) return;
    const PrivateFolder temporary;
    const Setting folder("TMPDIR", temporary.path().string());
    compile_source(hip_source(), target);
    CHECK(std::filesystem::is_empty(temporary.path()));
    compile_error({"nonsense", {"k"}}, target);
    CHECK(std::filesystem::is_empty(temporary.path()));
}

TEST_CASE("clang compiles also when TMPDIR names no folder") {
    const Target target = find_target("gfx942");
    if (!available(target)) return;
    const Setting folder("TMPDIR", "/absent");
    CHECK(compile_source(hip_source(), target).functions.size() == 2);
}

TEST_CASE("an unknown AMD toolchain in the environment is refused by name") {
    const Setting choice("ROWJIT_AMD_TOOLCHAIN", "nvcc");
    try {
        find_toolchain(find_target("gfx942"));
        FAIL("accepted");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kParse);
        CHECK(contains(error.what(), "ROWJIT_AMD_TOOLCHAIN"));
        CHECK(contains(error.what(), "hiprtc or clang"));
    }
}

TEST_CASE("options pin the arithmetic of every toolchain") {
    const auto has = [](const std::vector<std::string>& options, const char* option) {
        return std::find(options.begin(), options.end(), option) != options.end();
    };
    const std::vector<std::string> nvrtc = compile_options({"nvrtc", "13.0", ""}, find_target("sm_90a"));
    CHECK(has(nvrtc, "--fmad=false"));
    CHECK(has(nvrtc, "--gpu-architecture=sm_90a"));
    CHECK(has(nvrtc, "--minimal"));
    CHECK_FALSE(has(compile_options({"nvrtc", "12.2", ""}, find_target("sm_90a")), "--minimal"));
    for (const char* amd : {"hiprtc", "clang"}) {
        const std::vector<std::string> options = compile_options({amd, "1", ""}, find_target("gfx942"));
        CHECK(has(options, "-ffp-contract=off"));
        CHECK(has(options, "--offload-arch=gfx942"));
    }
}

TEST_CASE("ROWJIT_NVRTC replaces the search, by file or by folder") {
    const PrivateFolder folder;
    {
        const Setting choice("ROWJIT_NVRTC", "/a/libnvrtc.so.99");
        CHECK(nvrtc_candidates() == std::vector<std::string>{"/a/libnvrtc.so.99"});
    }
    const Setting choice("ROWJIT_NVRTC", folder.path().string());
    CHECK(nvrtc_candidates() == std::vector<std::string>{(folder.path() / "libnvrtc.so").string()});
    for (const char* name : {"libnvrtc.so.9", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"}) {
        std::ofstream(folder.path() / name) << "no library";
    }
    const std::vector<std::string> newest_first = {(folder.path() / "libnvrtc.so.13").string(),
                                                   (folder.path() / "libnvrtc.so.9").string()};
    CHECK(nvrtc_candidates() == newest_first);
}

TEST_CASE("probe" * doctest::skip()) {
    // Run by answer_of_new_process only.
    const Offer<Toolchain> toolchain = find_toolchain(probed_target());
    MESSAGE((toolchain ? "found " + toolchain->name : toolchain.reason()));
}

TEST_CASE("probe that compiles" * doctest::skip()) {
    // Run by output_of_new_process only.
    const Error error = compile_error(hip_source(), probed_target());
    MESSAGE(std::string(name(error.code())), " error: ", std::string(error.what()));
}

TEST_CASE("a clang that does not end is stopped, and that is a compile error") {
    const PrivateFolder folder;
    const std::string program = (folder.path() / "clang++").string();
    std::ofstream(program) << R"(#!/bin/sh
case "$*" in
    *--version) echo 'clang version 19.1.7' ;;
    *-print-prog-name=lld) echo /bin/true ;;
    *-###*) ;;
    *) echo 'at work' && sleep 600 ;;
esac
)";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const Setting toolchain("ROWJIT_AMD_TOOLCHAIN", "clang");
    const Setting clang("ROWJIT_CLANG", program);
    const Setting limit("ROWJIT_CLANG_TIMEOUT", "1");
    const std::string output = output_of_new_process("gfx942", "probe that compiles");
    CHECK_MESSAGE(contains(output, "compile error: clang 19.1.7 for gfx942: it had not ended after 1 s"), output);
    CHECK(contains(output, "ROWJIT_CLANG_TIMEOUT"));
    CHECK(contains(output, "at work"));
}

TEST_CASE("an absent toolchain is declined with what was tried and what to install") {
    const Setting nvrtc("ROWJIT_NVRTC", "/absent/libnvrtc.so.13");
    const Setting hiprtc("ROWJIT_HIPRTC", "/absent/libhiprtc.so.7");
    const Setting clang("ROWJIT_CLANG", "absent-clang");
    const std::string nvidia = answer_of_new_process("sm_90a");
    CHECK(contains(nvidia, "no NVRTC"));
    CHECK(contains(nvidia, "pip install nvidia-cuda-nvrtc"));
    CHECK(contains(nvidia, "/absent/libnvrtc.so.13"));
    const std::string amd = answer_of_new_process("gfx942");
    CHECK(contains(amd, "no hipRTC"));
    CHECK(contains(amd, "/absent/libhiprtc.so.7"));
    CHECK(contains(amd, "no clang for AMD"));
    CHECK(contains(amd, "absent-clang: no such program"));
    CHECK(contains(amd, "lld-19"));
}

TEST_CASE("a file that is no toolchain is declined as what it is") {
    const Setting nvrtc("ROWJIT_NVRTC", "libm.so.6");
    CHECK(contains(answer_of_new_process("sm_90a"), "libm.so.6 has no nvrtcVersion"));
    const Setting hiprtc("ROWJIT_HIPRTC", "libm.so.6");
    const Setting clang("ROWJIT_CLANG", "/bin/true");
    const std::string amd = answer_of_new_process("gfx942");
    CHECK(contains(amd, "libm.so.6 has no hiprtcVersion"));
    CHECK(contains(amd, "/bin/true is no clang"));
}

}  // namespace rowjit
