#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "base/check.h"
#include "base/fail.h"
#include "base/log.h"

namespace rowjit {

namespace {

constexpr std::string_view kPrefix = "ROWJIT_";

// A kind of value: what it accepts, in words and as a test.
struct ValueKind {
    std::string_view accepts;
    bool (*valid)(std::string_view text);
};

std::optional<int> integer_from(std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

bool is_path(std::string_view text) { return text.starts_with('/'); }
bool is_path_or_off(std::string_view text) { return is_path(text) || text == "off"; }
bool is_anything(std::string_view) { return true; }
bool is_flag(std::string_view text) { return text == "0" || text == "1"; }
bool is_names(std::string_view text) {
    return text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_,") == std::string_view::npos;
}

std::vector<std::string> split_paths(std::string_view text) {
    std::vector<std::string> paths;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(':', begin), text.size());
        if (end > begin) paths.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return paths;
}

bool are_paths(std::string_view text) {
    const std::vector<std::string> paths = split_paths(text);
    return std::all_of(paths.begin(), paths.end(), is_path);
}

bool is_level(std::string_view text) { return parse_log_level(text).has_value(); }
bool is_amd_toolchain(std::string_view text) { return text == "hiprtc" || text == "clang"; }
bool is_thread_count(std::string_view text) {
    const std::optional<int> count = integer_from(text);
    return count && *count >= 1 && *count <= 4096;
}

bool is_count(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}
bool is_seconds(std::string_view text) {
    const std::optional<int> seconds = integer_from(text);
    return seconds && *seconds >= 1 && *seconds <= 86400;
}

constexpr ValueKind kPathOrOff{"an absolute path, or off", is_path_or_off};
constexpr ValueKind kFile{"a file name or path", is_anything};
constexpr ValueKind kFlag{"0 or 1", is_flag};
constexpr ValueKind kLevel{"off, error, warning, info or debug", is_level};
constexpr ValueKind kAmdToolchain{"hiprtc or clang", is_amd_toolchain};
constexpr ValueKind kCount{"a number", is_count};
constexpr ValueKind kPaths{"absolute paths with colons between", are_paths};
constexpr ValueKind kNames{"names of operations with commas between", is_names};
constexpr ValueKind kSeconds{"a number of seconds from 1 to 86400", is_seconds};
constexpr ValueKind kThreads{"a number from 1 to 4096", is_thread_count};

struct Row {
    std::string_view name;
    const ValueKind& kind;
    std::string_view default_text;
    std::string_view meaning;
};

constexpr std::array kTable = {
    Row{"ROWJIT_AMD_TOOLCHAIN", kAmdToolchain, "hipRTC where it knows the target, else clang",
        "which compiler makes AMD code objects"},
    Row{"ROWJIT_BUNDLE_PATH", kPaths, "none", "bundles of compiled kernels and tuning results, asked before the cache"},
    Row{"ROWJIT_CACHE_DIR", kPathOrOff, "$XDG_CACHE_HOME/rowjit, else ~/.cache/rowjit",
        "where compiled kernels and tuning results are kept"},
    Row{"ROWJIT_CBLAS", kFile, "the system's libopenblas or libcblas", "the BLAS that multiplies matrices on the CPU"},
    Row{"ROWJIT_CLANG", kFile, "clang on PATH", "the clang that compiles for AMD"},
    Row{"ROWJIT_CLANG_TIMEOUT", kSeconds, "120", "seconds after which a clang that has not ended is stopped"},
    Row{"ROWJIT_CPU_THREADS", kThreads, "every processor", "threads that run a CPU kernel"},
    Row{"ROWJIT_CUBLASLT", kFile, "the system's libcublasLt", "the cuBLASLt that multiplies matrices, or its folder"},
    Row{"ROWJIT_CUDA_DRIVER", kFile, "libcuda.so.1", "the NVIDIA driver library that runs kernels"},
    Row{"ROWJIT_FUZZ_COMPILED", kFile, "none", "a file of what tests that compile everything were told before"},
    Row{"ROWJIT_FUZZ_FIRST", kCount, "1", "the first seed of the randomised tests, to repeat a failure"},
    Row{"ROWJIT_FUZZ_OPS", kNames, "all", "the operations that tests of everything are bounded to"},
    Row{"ROWJIT_FUZZ_SEEDS", kCount, "a fixed few", "how many seeds each randomised test runs; samples become all"},
    Row{"ROWJIT_HIP_DRIVER", kFile, "the system's libamdhip64", "the HIP runtime that runs kernels on AMD"},
    Row{"ROWJIT_HIPBLASLT", kFile, "the system's libhipblaslt", "the hipBLASLt that multiplies matrices on AMD"},
    Row{kLogVariable, kLevel, "warning", "what is logged to standard error"},
    Row{"ROWJIT_HIPRTC", kFile, "the system's libhiprtc or libamdhip64", "the hipRTC library, or its folder"},
    Row{"ROWJIT_NVRTC", kFile, "the system's libnvrtc", "the NVRTC library that compiles for NVIDIA, or its folder"},
    Row{"ROWJIT_ONEDNN", kFile, "the system's libdnnl", "the oneDNN that multiplies matrices of bf16 on the CPU"},
    Row{"ROWJIT_PINNED_CHOICES", kFile, "none", "a table of schedules that decides in place of what was tuned here"},
    Row{"ROWJIT_TESTS_REQUIRE_TOOLCHAINS", kFlag, "0", "tests fail, not skip, where a GPU toolchain is absent"},
};

const Row& row(std::string_view name) {
    const auto found = std::find_if(kTable.begin(), kTable.end(), [&](const Row& r) { return r.name == name; });
    RJ_CHECK(found != kTable.end(), "{} is not in the table of environment variables", name);
    return *found;
}

std::optional<std::string> set_value(const Row& row) {
    const char* text = std::getenv(std::string(row.name).c_str());
    if (text == nullptr || *text == '\0') return std::nullopt;
    return text;
}

std::string problem(const Row& row, const std::optional<std::string>& value) {
    if (!value || row.kind.valid(*value)) return "";
    return fmt::format("{} is '{}'; set it to {}, or unset it", row.name, *value, row.kind.accepts);
}

}  // namespace

std::optional<std::string> environment_text(std::string_view name) {
    const Row& variable = row(name);
    std::optional<std::string> value = set_value(variable);
    if (const std::string wrong = problem(variable, value); !wrong.empty()) fail(ErrorCode::kParse, "{}", wrong);
    return value;
}

std::optional<int> environment_integer(std::string_view name) {
    const std::optional<std::string> text = environment_text(name);
    return text ? integer_from(*text) : std::nullopt;
}

std::vector<std::string> environment_paths(std::string_view name) {
    const std::optional<std::string> text = environment_text(name);
    return text ? split_paths(*text) : std::vector<std::string>();
}

bool environment_flag(std::string_view name) { return environment_text(name) == "1"; }

std::vector<EnvironmentReport> environment_report() {
    std::vector<EnvironmentReport> reports;
    for (const Row& variable : kTable) {
        std::optional<std::string> value = set_value(variable);
        std::string wrong = problem(variable, value);
        reports.push_back({std::string(variable.name), std::string(variable.meaning),
                           std::string(variable.kind.accepts), std::string(variable.default_text), std::move(value),
                           std::move(wrong)});
    }
    return reports;
}

std::vector<std::string> unknown_environment_names() {
    std::vector<std::string> unknown;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view setting = *entry;
        const std::string_view name = setting.substr(0, setting.find('='));
        const bool known = std::any_of(kTable.begin(), kTable.end(), [&](const Row& r) { return r.name == name; });
        if (name.starts_with(kPrefix) && !known) unknown.emplace_back(name);
    }
    return unknown;
}

void check_environment() {
    for (const Row& variable : kTable) environment_text(variable.name);
    for (const std::string& name : unknown_environment_names())
        log_once(name, LogLevel::kWarning, "{} is set, but rowjit reads no such variable; `rowjit doctor` lists them",
                 name);
}

}  // namespace rowjit
