#include "compiler/toolchain/hiprtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/dynamic_library.h"
#include "base/fork_mutex.h"
#include "compiler/toolchain/library_search.h"
#include "compiler/toolchain/runtime_compiler.h"

namespace rowjit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIsaPrefix = "amdgcn-amd-amdhsa--";
constexpr const char* kInstall =
    "install ROCm or Debian's libamdhip64-dev, or set ROWJIT_HIPRTC to the library or its folder";

// hipRTC is a library of its own from ROCm 6 on and part of libamdhip64 before.
const std::vector<std::string> kStems = {"libhiprtc.so", "libamdhip64.so"};
constexpr const char* kSonames[] = {"libhiprtc.so.7",   "libhiprtc.so.6",   "libhiprtc.so",
                                    "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
constexpr const char* kComgrSonames[] = {"libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so"};
constexpr int kSuccess = 0;  // of hipRTC, HIP and comgr alike

// amd_comgr.h's handle.
struct ComgrActionInfo {
    std::uint64_t handle = 0;
};

struct Hiprtc {
    RuntimeCompiler compiler;
    std::string version_text;

    // Of libamd_comgr, the code object manager that hipRTC compiles with.
    int (*isa_count)(std::size_t*) = nullptr;
    int (*isa_name)(std::size_t index, const char** name) = nullptr;
    int (*create_action)(ComgrActionInfo*) = nullptr;
    int (*destroy_action)(ComgrActionInfo) = nullptr;
    int (*set_isa)(ComgrActionInfo, const char* isa) = nullptr;
    void (*comgr_version)(std::size_t* major, std::size_t* minor) = nullptr;

    DynamicLibrary library;
    DynamicLibrary comgr;
};

// "" or the first function the library lacks.
std::string resolve_comgr(Hiprtc& hiprtc) {
    std::string missing;
    const auto need = [&](const char* symbol, auto*& function) {
        if (!hiprtc.comgr.find(symbol, function) && missing.empty()) missing = symbol;
    };
    need("amd_comgr_get_isa_count", hiprtc.isa_count);
    need("amd_comgr_get_isa_name", hiprtc.isa_name);
    need("amd_comgr_create_action_info", hiprtc.create_action);
    need("amd_comgr_destroy_action_info", hiprtc.destroy_action);
    need("amd_comgr_action_info_set_isa_name", hiprtc.set_isa);
    need("amd_comgr_get_version", hiprtc.comgr_version);
    return missing;
}

// Before ROCm 6 hiprtcVersion answers 9.0 whatever the release; the runtime's own version, in the same library there,
// is the release's.
std::string version_text(const Hiprtc& hiprtc) {
    int (*runtime_version)(int*) = nullptr;
    int packed = 0;
    std::string text;
    if (hiprtc.library.find("hipRuntimeGetVersion", runtime_version) && runtime_version(&packed) == kSuccess) {
        text = fmt::format("{}.{}.{}", packed / 10'000'000, packed / 100'000 % 100, packed % 100'000);
    } else {
        int major = 0;
        int minor = 0;
        if (hiprtc.compiler.version(&major, &minor) != kSuccess) return "";
        text = fmt::format("{}.{}", major, minor);
    }
    std::size_t major = 0;
    std::size_t minor = 0;
    hiprtc.comgr_version(&major, &minor);
    return fmt::format("{} comgr {}.{}", text, major, minor);
}

// The code object manager that this hipRTC uses: the one in its own folder, else the loader's.
Offer<DynamicLibrary> open_comgr(const DynamicLibrary& hiprtc) {
    std::vector<std::string> candidates = libraries_in({fs::path(hiprtc.path()).parent_path()}, {"libamd_comgr.so"});
    candidates.insert(candidates.end(), std::begin(kComgrSonames), std::end(kComgrSonames));
    for (const std::string& candidate : candidates) {
        Offer<DynamicLibrary> comgr = DynamicLibrary::open(candidate);
        if (comgr) return comgr;
    }
    return Declined{hiprtc.path() + " has no libamd_comgr, which must be asked what hipRTC knows before it is called"};
}

Offer<Hiprtc> open_candidate(const std::string& candidate) {
    Offer<DynamicLibrary> library = DynamicLibrary::open(candidate);
    if (!library) return Declined{library.reason()};
    Hiprtc hiprtc;
    hiprtc.library = std::move(*library);
    if (const std::string missing = resolve(hiprtc.compiler, hiprtc.library, "hiprtc", "Code"); !missing.empty())
        return Declined{fmt::format("{} has no {}", candidate, missing)};
    Offer<DynamicLibrary> comgr = open_comgr(hiprtc.library);
    if (!comgr) return Declined{comgr.reason()};
    hiprtc.comgr = std::move(*comgr);
    if (const std::string missing = resolve_comgr(hiprtc); !missing.empty())
        return Declined{fmt::format("{} has no {}", hiprtc.comgr.path(), missing)};
    hiprtc.version_text = version_text(hiprtc);
    if (hiprtc.version_text.empty()) return Declined{candidate + " does not tell its version"};
    hiprtc.compiler.label = "hiprtc " + hiprtc.version_text;
    // comgr's own name for the source, whatever name the program is given.
    hiprtc.compiler.file_name = "CompileSource";
    return hiprtc;
}

Offer<Hiprtc> open_hiprtc() {
    Offer<Hiprtc> hiprtc = open_first(hiprtc_candidates(), open_candidate);
    if (hiprtc) return hiprtc;
    return Declined{fmt::format("no hipRTC; {}. Tried:{}", kInstall, hiprtc.reason())};
}

// Opened once and never closed: a compile may be running on another thread when the process exits.
const Offer<Hiprtc>& shared_hiprtc() {
    static const Offer<Hiprtc>& hiprtc = *new Offer<Hiprtc>(open_hiprtc());
    return hiprtc;
}

// comgr validates the name with its features ("gfx90a:xnack+"), which the list of its bare names cannot tell.
bool knows(const Hiprtc& hiprtc, const std::string& name) {
    ComgrActionInfo action;
    if (hiprtc.create_action(&action) != kSuccess) return false;
    const bool known = hiprtc.set_isa(action, (kIsaPrefix + name).c_str()) == kSuccess;
    hiprtc.destroy_action(action);
    return known;
}

std::vector<std::string> known_names(const Hiprtc& hiprtc) {
    std::vector<std::string> names;
    std::size_t count = 0;
    if (hiprtc.isa_count(&count) != kSuccess) return names;
    for (std::size_t i = 0; i < count; ++i) {
        const char* name = nullptr;
        if (hiprtc.isa_name(i, &name) != kSuccess || name == nullptr) continue;
        const std::string_view isa = name;
        names.emplace_back(isa.substr(isa.rfind('-') + 1));
    }
    return names;
}

std::vector<fs::path> rocm_folders() {
    std::vector<fs::path> installations;
    for (const char* variable : {"ROCM_PATH", "HIP_PATH"}) {
        if (const std::string value = system_variable(variable); !value.empty()) installations.emplace_back(value);
    }
    installations.emplace_back("/opt/rocm");
    const std::vector<fs::path> versioned = entries_with_prefix("/opt", "rocm-");
    installations.insert(installations.end(), versioned.begin(), versioned.end());

    std::vector<fs::path> folders;
    for (const fs::path& installation : installations) folders.push_back(installation / "lib");
    return folders;
}

}  // namespace

std::vector<std::string> hiprtc_candidates() {
    if (std::optional<std::vector<std::string>> chosen = chosen_libraries("ROWJIT_HIPRTC", kStems)) return *chosen;
    std::vector<std::string> candidates = libraries_in(folders_beside_rowjit(), kStems);
    const std::vector<std::string> installed = libraries_in(rocm_folders(), kStems);
    candidates.insert(candidates.end(), installed.begin(), installed.end());
    candidates.insert(candidates.end(), std::begin(kSonames), std::end(kSonames));
    return candidates;
}

Offer<Toolchain> find_hiprtc(const Target& target) {
    const Offer<Hiprtc>& hiprtc = shared_hiprtc();
    if (!hiprtc) return Declined{hiprtc.reason()};
    if (!knows(*hiprtc, target.name))
        return Declined{fmt::format("hiprtc {} ({}) does not know {}; it knows {}", hiprtc->version_text,
                                    hiprtc->library.path(), target.name, fmt::join(known_names(*hiprtc), ", "))};
    return Toolchain{"hiprtc", hiprtc->version_text, hiprtc->library.path()};
}

std::vector<std::string> hiprtc_options(const Toolchain&, const Target& target) {
    // HIP contracts a*b+c by default, which rounds once where every other backend rounds twice.
    return {"--offload-arch=" + target.name, "-std=c++17", "-O3", "-ffp-contract=off"};
}

std::string compile_with_hiprtc(const Source& source, const Target& target, const std::vector<std::string>& options) {
    const Offer<Hiprtc>& offer = shared_hiprtc();
    RJ_CHECK(offer && knows(*offer, target.name), "compile_with_hiprtc for {} without find_hiprtc", target.name);
    // One compile at a time: hipRTC 5.2 keeps LLVM's options in process-wide state, and of eight compiles at once about
    // one in a hundred reports success with a code object made under another's options (unoptimised, or 5 times the
    // size).
    static ForkMutex& mutex = *new ForkMutex();
    const std::lock_guard<ForkMutex> lock(mutex);
    return run_compiler(offer->compiler, source, target, options);
}

}  // namespace rowjit
