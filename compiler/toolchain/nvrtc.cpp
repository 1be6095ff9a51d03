#include "compiler/toolchain/nvrtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/check.h"
#include "base/dynamic_library.h"
#include "base/fail.h"
#include "compiler/toolchain/compile_failure.h"
#include "compiler/toolchain/library_search.h"

namespace rowjit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "kernel.cu";
constexpr const char* kSonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr const char* kInstall =
    "install a CUDA toolkit or `pip install nvidia-cuda-nvrtc`, or set ROWJIT_NVRTC to the library or its folder";

// nvrtc.h's own result codes; only these are told apart.
enum NvrtcResult : int { kSuccess = 0, kInvalidOption = 5, kCompilationFailed = 6 };

using Program = struct NvrtcProgram*;

// The functions used, declared here so that no CUDA header is needed to build rowjit.
struct Nvrtc {
    int (*version)(int* major, int* minor) = nullptr;
    int (*supported_count)(int* count) = nullptr;
    int (*supported)(int* architectures) = nullptr;
    int (*create)(Program*, const char* source, const char* name, int, const char* const*,
                  const char* const*) = nullptr;
    int (*destroy)(Program*) = nullptr;
    int (*compile)(Program, int option_count, const char* const* options) = nullptr;
    int (*cubin_size)(Program, std::size_t*) = nullptr;
    int (*cubin)(Program, char*) = nullptr;
    int (*log_size)(Program, std::size_t*) = nullptr;
    int (*log)(Program, char*) = nullptr;
    const char* (*error_text)(int) = nullptr;

    DynamicLibrary library;
    std::vector<DynamicLibrary> builtins;
    std::string version_text;
    std::vector<int> architectures;
};

// "" or the first function the library lacks.
std::string resolve(Nvrtc& nvrtc) {
    const DynamicLibrary& library = nvrtc.library;
    std::string missing;
    const auto need = [&](const char* symbol, auto*& function) {
        if (!library.find(symbol, function) && missing.empty()) missing = symbol;
    };
    need("nvrtcVersion", nvrtc.version);
    need("nvrtcGetNumSupportedArchs", nvrtc.supported_count);
    need("nvrtcGetSupportedArchs", nvrtc.supported);
    need("nvrtcCreateProgram", nvrtc.create);
    need("nvrtcDestroyProgram", nvrtc.destroy);
    need("nvrtcCompileProgram", nvrtc.compile);
    need("nvrtcGetCUBINSize", nvrtc.cubin_size);
    need("nvrtcGetCUBIN", nvrtc.cubin);
    need("nvrtcGetProgramLogSize", nvrtc.log_size);
    need("nvrtcGetProgramLog", nvrtc.log);
    need("nvrtcGetErrorString", nvrtc.error_text);
    return missing;
}

// libnvrtc opens libnvrtc-builtins by soname at its first compile, and up to 13.0 it carries no search path of its own.
// A copy that is already loaded satisfies it wherever it lies.
std::vector<DynamicLibrary> open_builtins(const DynamicLibrary& nvrtc) {
    std::vector<DynamicLibrary> opened;
    for (const std::string& file : libraries_in({fs::path(nvrtc.path()).parent_path()}, "libnvrtc-builtins.so")) {
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
    if (const std::string missing = resolve(nvrtc); !missing.empty())
        return Declined{fmt::format("{} has no {}: too old, 11.2 or newer is needed", candidate, missing)};
    int major = 0;
    int minor = 0;
    int count = 0;
    if (nvrtc.version(&major, &minor) != kSuccess || nvrtc.supported_count(&count) != kSuccess || count < 0)
        return Declined{candidate + " does not tell its version"};
    nvrtc.version_text = fmt::format("{}.{}", major, minor);
    nvrtc.architectures.resize(static_cast<std::size_t>(count));
    if (nvrtc.supported(nvrtc.architectures.data()) != kSuccess)
        return Declined{candidate + " does not tell its architectures"};
    nvrtc.builtins = open_builtins(nvrtc.library);
    return nvrtc;
}

Offer<Nvrtc> open_nvrtc() {
    std::string reasons;
    for (const std::string& candidate : nvrtc_candidates()) {
        Offer<Nvrtc> nvrtc = open_candidate(candidate);
        if (nvrtc) return nvrtc;
        reasons += "\n  " + nvrtc.reason();
    }
    return Declined{fmt::format("no NVRTC; {}. Tried:{}", kInstall, reasons)};
}

// Opened once and never closed: a compile may be running on another thread when the process exits.
const Offer<Nvrtc>& shared_nvrtc() {
    static const Offer<Nvrtc>& nvrtc = *new Offer<Nvrtc>(open_nvrtc());
    return nvrtc;
}

class ProgramHandle {
  public:
    ProgramHandle(const Nvrtc& nvrtc, const std::string& source) : nvrtc_(nvrtc) {
        const int result = nvrtc.create(&program_, source.c_str(), kFileName, 0, nullptr, nullptr);
        if (result != kSuccess)
            fail(ErrorCode::kEnvironment, "nvrtc {}: creating a program failed: {}", nvrtc.version_text,
                 nvrtc.error_text(result));
    }
    ProgramHandle(const ProgramHandle&) = delete;
    ProgramHandle& operator=(const ProgramHandle&) = delete;
    ~ProgramHandle() { nvrtc_.destroy(&program_); }

    Program get() const { return program_; }

  private:
    const Nvrtc& nvrtc_;
    Program program_ = nullptr;
};

std::string log_of(const Nvrtc& nvrtc, Program program) {
    std::size_t size = 0;
    if (nvrtc.log_size(program, &size) != kSuccess || size == 0) return "";
    std::string log(size, '\0');
    if (nvrtc.log(program, log.data()) != kSuccess) return "";
    return log;
}

// Wheels unpack to nvidia/cu13 (CUDA 13) or nvidia/cuda_nvrtc (11 and 12) in every installation's site-packages.
std::vector<fs::path> python_folders() {
    std::vector<fs::path> prefixes;
    for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
        if (const std::string value = environment_value(variable); !value.empty()) prefixes.emplace_back(value);
    }
    prefixes.emplace_back("/usr/local");
    prefixes.emplace_back("/usr");
    if (const std::string home = environment_value("HOME"); !home.empty()) {
        prefixes.push_back(fs::path(home) / ".local");
        const std::vector<fs::path> pyenv = entries_with_prefix(fs::path(home) / ".pyenv/versions", "");
        prefixes.insert(prefixes.end(), pyenv.begin(), pyenv.end());
    }
    std::vector<fs::path> folders;
    for (const fs::path& prefix : prefixes) {
        for (const fs::path& python : entries_with_prefix(prefix / "lib", "python3")) {
            for (const char* packages : {"site-packages", "dist-packages"}) {
                folders.push_back(python / packages / "nvidia/cu13/lib");
                folders.push_back(python / packages / "nvidia/cuda_nvrtc/lib");
            }
        }
    }
    return folders;
}

std::vector<fs::path> toolkit_folders() {
    std::vector<fs::path> toolkits;
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const std::string value = environment_value(variable); !value.empty()) toolkits.emplace_back(value);
    }
    toolkits.emplace_back("/usr/local/cuda");
    const std::vector<fs::path> versioned = entries_with_prefix("/usr/local", "cuda-");
    toolkits.insert(toolkits.end(), versioned.begin(), versioned.end());

    std::vector<fs::path> folders;
    for (const fs::path& toolkit : toolkits) {
        for (const char* libraries : {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
            folders.push_back(toolkit / libraries);
        }
    }
    return folders;
}

}  // namespace

std::vector<std::string> nvrtc_candidates() {
    constexpr std::string_view stem = "libnvrtc.so";
    if (const std::string chosen = environment_value("ROWJIT_NVRTC"); !chosen.empty()) {
        std::error_code error;
        if (!fs::is_directory(chosen, error)) return {chosen};
        std::vector<std::string> inside = libraries_in({chosen}, stem);
        return inside.empty() ? std::vector<std::string>{(fs::path(chosen) / stem).string()} : inside;
    }
    std::vector<std::string> candidates;
    for (const std::vector<fs::path>& folders : {folders_beside_rowjit(), toolkit_folders(), python_folders()}) {
        const std::vector<std::string> found = libraries_in(folders, stem);
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
        "--fmad=false",
        "--ftz=false",
        "--prec-div=true",
        "--prec-sqrt=true",
    };
    // Leaves out the built-in headers; the prelude needs none. Older releases do not know the option.
    int major = 0;
    std::from_chars(toolchain.version.data(), toolchain.version.data() + toolchain.version.size(), major);
    if (major >= 13) options.push_back("--minimal");
    return options;
}

std::string compile_with_nvrtc(const Source& source, const Target& target, const std::vector<std::string>& options) {
    const Offer<Nvrtc>& offer = shared_nvrtc();
    RJ_CHECK(static_cast<bool>(offer), "compile_with_nvrtc for {} without find_nvrtc", target.name);
    const Nvrtc& nvrtc = *offer;

    // One program per compile and thread; the library is reentrant in that use.
    const ProgramHandle program(nvrtc, source.text);
    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    const int result = nvrtc.compile(program.get(), static_cast<int>(arguments.size()), arguments.data());
    if (result != kSuccess) {
        const bool refused = result == kCompilationFailed || result == kInvalidOption;
        fail(refused ? ErrorCode::kCompile : ErrorCode::kEnvironment, "nvrtc {} for {}: {}\n{}", nvrtc.version_text,
             target.name, nvrtc.error_text(result),
             describe_compile_failure(source.text, kFileName, log_of(nvrtc, program.get())));
    }
    std::size_t size = 0;
    if (nvrtc.cubin_size(program.get(), &size) != kSuccess || size == 0)
        fail(ErrorCode::kEnvironment, "nvrtc {} for {}: no cubin came out", nvrtc.version_text, target.name);
    std::string cubin(size, '\0');
    if (nvrtc.cubin(program.get(), cubin.data()) != kSuccess)
        fail(ErrorCode::kEnvironment, "nvrtc {} for {}: the cubin could not be read", nvrtc.version_text, target.name);
    return cubin;
}

}  // namespace rowjit
