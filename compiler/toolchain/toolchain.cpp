#include "compiler/toolchain/toolchain.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/environment.h"
#include "base/fail.h"
#include "compiler/toolchain/clang.h"
#include "compiler/toolchain/code_object_info.h"
#include "compiler/toolchain/cubin_info.h"
#include "compiler/toolchain/hiprtc.h"
#include "compiler/toolchain/nvrtc.h"

namespace rowjit {
namespace {

// A row per toolchain; for each backend, the first that offers is used. hipRTC is before clang because it takes no
// process per kernel.
struct Row {
    Backend backend;
    const char* name;
    const char* format;
    Offer<Toolchain> (*find)(const Target&);
    std::vector<std::string> (*options)(const Toolchain&, const Target&);
    std::string (*compile)(const Source&, const Target&, const std::vector<std::string>& options);
    Offer<std::vector<FunctionInfo>> (*describe)(std::string_view binary);
};

constexpr Row kRows[] = {
    {Backend::kCuda, "nvrtc", "cubin", find_nvrtc, nvrtc_options, compile_with_nvrtc, cubin_info},
    {Backend::kHip, "hiprtc", "code-object", find_hiprtc, hiprtc_options, compile_with_hiprtc, code_object_info},
    {Backend::kHip, "clang", "code-object", find_clang, clang_options, compile_with_clang, code_object_info},
};

const Row& row_of(const Toolchain& toolchain) {
    for (const Row& row : kRows) {
        if (toolchain.name == row.name) return row;
    }
    RJ_CHECK(false, "no toolchain is called '{}'", toolchain.name);
    std::abort();
}

// The binary's functions in the source's order.
std::vector<FunctionInfo> describe(const Row& row, const Source& source, const std::string& binary) {
    Offer<std::vector<FunctionInfo>> found = row.describe(binary);
    RJ_CHECK(static_cast<bool>(found), "{} made a {} that cannot be read: {}", row.name, row.format, found.reason());
    std::vector<FunctionInfo> ordered;
    for (const std::string& name : source.functions) {
        for (FunctionInfo& function : *found) {
            if (function.name == name) ordered.push_back(std::move(function));
        }
        RJ_CHECK(!ordered.empty() && ordered.back().name == name, "{}: the compiled source has no entry point '{}'",
                 row.name, name);
    }
    return ordered;
}

}  // namespace

std::vector<std::string> compile_options(const Toolchain& toolchain, const Target& target) {
    return row_of(toolchain).options(toolchain, target);
}

Offer<Toolchain> find_toolchain(const Target& target) {
    const std::optional<std::string> amd_choice = environment_text("ROWJIT_AMD_TOOLCHAIN");
    std::string reasons;
    for (const Row& row : kRows) {
        if (row.backend != target.backend) continue;
        if (row.backend == Backend::kHip && amd_choice && *amd_choice != row.name) continue;
        Offer<Toolchain> toolchain = row.find(target);
        if (toolchain) return toolchain;
        reasons += (reasons.empty() ? "" : "\n") + toolchain.reason();
    }
    if (reasons.empty()) reasons = "no toolchain compiles source for the CPU; LLVM does it from the loop IR";
    return Declined{reasons};
}

Artifact compile_source(const Source& source, const Target& target) {
    const Offer<Toolchain> toolchain = find_toolchain(target);
    if (!toolchain) fail(ErrorCode::kEnvironment, "nothing compiles for {}: {}", target.name, toolchain.reason());
    const Row& row = row_of(*toolchain);

    const auto start = std::chrono::steady_clock::now();
    Artifact artifact;
    artifact.binary = row.compile(source, target, row.options(*toolchain, target));
    artifact.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    artifact.target = target.name;
    artifact.format = row.format;
    artifact.toolchain = toolchain->name + " " + toolchain->version;
    artifact.functions = describe(row, source, artifact.binary);
    return artifact;
}

}  // namespace rowjit
