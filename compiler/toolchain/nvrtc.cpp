#include "compiler/toolchain/nvrtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/check.h"
#include "base/dynamic_library.h"
#include "compiler/toolchain/cubin_info.h"
#include "compiler/toolchain/library_search.h"
#include "compiler/toolchain/runtime_compiler.h"

namespace rowjit {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kStems = {"libnvrtc.so"};
constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr const char* kInstall =
    "install a CUDA toolkit or `pip install nvidia-cuda-nvrtc`, or set ROWJIT_NVRTC to the library or its folder";

struct Nvrtc {
    RuntimeCompiler compiler;
    std::string version_text;
    std::vector<int> architectures;  // 90 for sm_90
    DynamicLibrary library;
    std::vector<DynamicLibrary> builtins;
};

// "" or why the library does not tell.
std::string ask_architectures(Nvrtc& nvrtc) {
    int (*supported_count)(int* count) = nullptr;
    int (*supported)(int* architectures) = nullptr;
    int count = 0;
    if (!nvrtc.library.find("nvrtcGetNumSupportedArchs", supported_count) ||
        !nvrtc.library.find("nvrtcGetSupportedArchs", supported))
        return "cannot be asked for its architectures: too old, 11.2 or newer is needed";
    if (supported_count(&count) != RuntimeCompiler::kSuccess || count < 0) return "does not tell its architectures";
    nvrtc.architectures.resize(static_cast<std::size_t>(count));
    if (supported(nvrtc.architectures.data()) != RuntimeCompiler::kSuccess) return "does not tell its architectures";
    return "";
}

// libnvrtc opens libnvrtc-builtins by soname at its first compile, and up to 13.0 it carries no search path of its own.
// A copy that is already loaded satisfies it wherever it lies.
std::vector<DynamicLibrary> open_builtins(const DynamicLibrary& nvrtc) {
    std::vector<DynamicLibrary> opened;
    for (const std::string& file : libraries_in({fs::path(nvrtc.path()).parent_path()}, {"libnvrtc-builtins.so"})) {
        Offer<DynamicLibrary> builtins = DynamicLibrary::open(file);
        if (builtins) opened.push_back(std::move(*builtins));
    }
    return opened;
}

Offer<Nvrtc> open_candidate(const std::string& candidate) {
    Offer<DynamicLibrary> library = DynamicLibrary::open(candidate);
    if (!library) return Declined{library.reason()};
    Nvrtc nvrtc;
    nvrtc.library = std::move(*library);
    if (const std::string missing = resolve(nvrtc.compiler, nvrtc.library, "nvrtc", "CUBIN"); !missing.empty())
        return Declined{fmt::format("{} has no {}: too old, 11.2 or newer is needed", candidate, missing)};
    int major = 0;
    int minor = 0;
    if (nvrtc.compiler.version(&major, &minor) != RuntimeCompiler::kSuccess)
        return Declined{candidate + " does not tell its version"};
    nvrtc.version_text = fmt::format("{}.{}", major, minor);
    nvrtc.compiler.label = "nvrtc " + nvrtc.version_text;
    nvrtc.compiler.file_name = "kernel.cu";
    if (const std::string reason = ask_architectures(nvrtc); !reason.empty())
        return Declined{fmt::format("{} {}", candidate, reason)};
    nvrtc.builtins = open_builtins(nvrtc.library);
    return nvrtc;
}

Offer<Nvrtc> open_nvrtc() {
    Offer<Nvrtc> nvrtc = open_first(nvrtc_candidates(), open_candidate);
    if (nvrtc) return nvrtc;
    return Declined{fmt::format("no NVRTC; {}. Tried:{}", kInstall, nvrtc.reason())};
}

// Opened once and never closed: a compile may be running on another thread when the process exits.
const Offer<Nvrtc>& shared_nvrtc() {
    static const Offer<Nvrtc>& nvrtc = *new Offer<Nvrtc>(open_nvrtc());
    return nvrtc;
}

// Of all the functions of a cubin.
int spill_bytes(std::string_view cubin) {
    int bytes = 0;
    if (const Offer<std::vector<FunctionInfo>> functions = cubin_info(cubin)) {
        for (const FunctionInfo& function : *functions) bytes += function.spill_bytes;
    }
    return bytes;
}

}  // namespace

std::vector<std::string> nvrtc_candidates() {
    if (std::optional<std::vector<std::string>> chosen = chosen_libraries("ROWJIT_NVRTC", kStems)) return *chosen;
    std::vector<std::string> candidates;
    for (const std::vector<fs::path>& folders : {folders_beside_rowjit(), cuda_toolkit_folders(),
                                                 python_wheel_folders({"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"})}) {
        const std::vector<std::string> found = libraries_in(folders, kStems);
        candidates.insert(candidates.end(), found.begin(), found.end());
    }
    candidates.insert(candidates.end(), std::begin(kSonames), std::end(kSonames));
    return candidates;
}

Offer<Toolchain> find_nvrtc(const Target& target) {
    const Offer<Nvrtc>& nvrtc = shared_nvrtc();
    if (!nvrtc) return Declined{nvrtc.reason()};

    // "sm_90a" is architecture 90 with its own instructions ('a'), or its family's ('f').
    const std::string_view digits = std::string_view(target.name).substr(std::min<std::size_t>(3, target.name.size()));
    int architecture = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), architecture);
    const std::string_view suffix = digits.substr(static_cast<std::size_t>(end - digits.data()));
    const bool well_formed =
        target.name.starts_with("sm_") && error == std::errc() && (suffix.empty() || suffix == "a" || suffix == "f");
    const std::vector<int>& known = nvrtc->architectures;
    if (!well_formed || std::find(known.begin(), known.end(), architecture) == known.end())
        return Declined{fmt::format("nvrtc {} ({}) does not know {}; it knows sm_{}", nvrtc->version_text,
                                    nvrtc->library.path(), target.name, fmt::join(known, ", sm_"))};
    return Toolchain{"nvrtc", nvrtc->version_text, nvrtc->library.path()};
}

std::vector<std::string> nvrtc_options(const Toolchain& toolchain, const Target& target) {
    // The floating-point flags are NVRTC's defaults but for -fmad; they are spelled out because every backend must
    // round alike, whatever a later default is.
    std::vector<std::string> options = {
        "--gpu-architecture=" + target.name,
        "-std=c++17",
        "-default-device",
        "--device-int128",
        "--fmad=false",
        "--ftz=false",
        "--prec-div=true",
        "--prec-sqrt=true",
    };
    // Leaves out the built-in headers; the prelude needs none. Older releases do not know the option.
    int major = 0;
    std::from_chars(toolchain.version.data(), toolchain.version.data() + toolchain.version.size(), major);
    if (major >= 13) options.emplace_back("--minimal");
    return options;
}

// A thread that lacks this many registers holds more than any option finds room for, and such kernels are what compiles
// longest: the backward through twenty iterations of Sinkhorn's (hyper_pre) lacks 2520 bytes with each of them, in 33 s
// of a processor's time at the first try alone.
constexpr int kHopelessSpillBytes = 1024;

// One in a hundred of the library's kernels spills though it has registers left, which the prelude can prevent at some
// cost (templates/prelude_cuda.h). One in five hundred spills also then: the assembler moves the loads of weights to
// the front of all the columns of a thread. Its first level of optimisation moves no loads, and takes 96 registers
// where it took 168 (a layer norm of 64 columns a thread). Last, fewer blocks share a multiprocessor than the schedule
// wants, which the tuner finds to be slow or not. What spills nothing first is taken, else what spills least.
std::string compile_with_nvrtc(const Source& source, const Target& target, const std::vector<std::string>& options) {
    const Offer<Nvrtc>& offer = shared_nvrtc();
    RJ_CHECK(static_cast<bool>(offer), "compile_with_nvrtc for {} without find_nvrtc", target.name);
    std::vector<std::string> sparing = options;
    std::string best = run_compiler(offer->compiler, source, target, options);
    int least = spill_bytes(best);
    for (const char* option : {"--define-macro=RJ_AVOID_SPILLS", "--define-macro=RJ_ONE_VECTOR", "--ptxas-options=-O1",
                               "--define-macro=RJ_ONE_BLOCK"}) {
        if (least == 0 || least >= kHopelessSpillBytes) break;
        sparing.emplace_back(option);
        std::string cubin = run_compiler(offer->compiler, source, target, sparing);
        const int spilled = spill_bytes(cubin);
        if (spilled >= least) continue;
        least = spilled;
        best = std::move(cubin);
    }
    return best;
}

}  // namespace rowjit
