#include "compiler/toolchain/clang.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/environment.h"
#include "base/fail.h"
#include "base/fork_mutex.h"
#include "compiler/toolchain/child_program.h"
#include "compiler/toolchain/compile_failure.h"
#include "compiler/toolchain/library_search.h"

namespace rowjit {
namespace {

constexpr const char* kFileName = "kernel.hip";
constexpr const char* kInstall = "install clang-19 and lld-19, or set ROWJIT_CLANG to a clang++ with AMD support";

// Version 19 first because it is the one that is tested; ROCm's own last because it is the slowest to start.
const std::vector<std::string> kPrograms = {"clang++-19", "clang++-20", "clang++-21", "clang++",
                                            "/opt/rocm/llvm/bin/clang++"};

struct Clang {
    std::string program;
    std::string version;
};

// For a compile, which takes 0.2 to 0.4 s, on a machine where a thousand others compile as well.
constexpr int kLimitSeconds = 120;

std::chrono::seconds limit() {
    return std::chrono::seconds(environment_integer("ROWJIT_CLANG_TIMEOUT").value_or(kLimitSeconds));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// "Debian clang version 19.1.7 (3~deb12u1)" gives "19.1.7"; "" for a program that is no clang.
std::string version_in(const std::string& banner) {
    constexpr std::string_view mark = "clang version ";
    const std::size_t at = banner.find(mark);
    if (at == std::string::npos) return "";
    const std::string rest = banner.substr(at + mark.size());
    return rest.substr(0, rest.find_first_of(" \n"));
}

Offer<Clang> open_clang_program(const std::string& name) {
    const std::string program = find_program(name);
    if (program.empty()) return Declined{name + ": no such program"};
    const PrivateFolder folder;
    const ProgramResult banner = run_program({program, "--version"}, folder, limit());
    const std::string version = version_in(banner.output);
    if (!banner.succeeded || version.empty()) return Declined{fmt::format("{} is no clang ({})", program, banner.how)};
    // clang prints a bare name when it has no such program.
    const ProgramResult linker = run_program({program, "-print-prog-name=lld"}, folder, limit());
    if (!linker.succeeded || !linker.output.starts_with('/'))
        return Declined{fmt::format("{} finds no lld, which links AMD code objects", program)};
    return Clang{program, version};
}

Offer<Clang> open_clang() {
    const std::optional<std::string> chosen = environment_text("ROWJIT_CLANG");
    Offer<Clang> clang = open_first(chosen ? std::vector<std::string>{*chosen} : kPrograms, open_clang_program);
    if (clang) return clang;
    return Declined{fmt::format("no clang for AMD; {}. Tried:{}", kInstall, clang.reason())};
}

const Offer<Clang>& shared_clang() {
    static const Offer<Clang>& clang = *new Offer<Clang>(open_clang());
    return clang;
}

// The command line but for the files.
std::vector<std::string> command(const Clang& clang, const std::vector<std::string>& options) {
    std::vector<std::string> words = {clang.program};
    words.insert(words.end(), options.begin(), options.end());
    return words;
}

// The driver checks a target's name, features included, before it starts the compiler: -### stops it there.
Offer<Toolchain> ask_for_target(const Clang& clang, const Target& target) {
    Toolchain toolchain{"clang", clang.version, clang.program};
    std::vector<std::string> words = command(clang, clang_options(toolchain, target));
    words.insert(words.end(), {"-###", "/dev/null"});
    const PrivateFolder folder;
    const ProgramResult result = run_program(words, folder, limit());
    if (result.succeeded) return toolchain;
    std::string reason = result.exited ? result.output : result.how;
    if (const std::size_t error = reason.find("error: "); error != std::string::npos) reason = reason.substr(error);
    return Declined{fmt::format("clang {} ({}) does not compile for {}: {}", clang.version, clang.program, target.name,
                                first_line(reason))};
}

}  // namespace

Offer<Toolchain> find_clang(const Target& target) {
    const Offer<Clang>& clang = shared_clang();
    if (!clang) return Declined{clang.reason()};
    // A question to the driver takes some 20 ms, so each target is asked about once.
    static ForkMutex& mutex = *new ForkMutex();
    static auto& answers = *new std::map<std::string, Offer<Toolchain>>();
    const std::lock_guard<ForkMutex> lock(mutex);
    const auto found = answers.find(target.name);
    if (found != answers.end()) return found->second;
    return answers.emplace(target.name, ask_for_target(*clang, target)).first->second;
}

std::vector<std::string> clang_options(const Toolchain&, const Target& target) {
    return {
        "-x",
        "hip",
        "--cuda-device-only",
        "--offload-arch=" + target.name,
        "-std=c++17",
        "-O3",
        // HIP contracts a*b+c by default, which rounds once where every other backend rounds twice.
        "-ffp-contract=off",
        // Neither ROCm's device library nor its headers nor the user's clang configuration: builtins only.
        "-nogpulib",
        "-nogpuinc",
        "--no-default-config",
        "--no-gpu-bundle-output",
        // What 19 defaults to; ROCm 5.6 and newer load it.
        "-mcode-object-version=5",
        // Else a symbol is named after the source's path, and equal sources give unequal code objects.
        "-fuse-cuid=none",
        "-fno-crash-diagnostics",
        "-fno-color-diagnostics",
    };
}

std::string compile_with_clang(const Source& source, const Target& target, const std::vector<std::string>& options) {
    const Offer<Clang>& clang = shared_clang();
    RJ_CHECK(static_cast<bool>(clang), "compile_with_clang for {} without find_clang", target.name);

    const PrivateFolder folder;
    const std::filesystem::path input = folder.path() / kFileName;
    const std::filesystem::path output = folder.path() / "kernel.co";
    std::ofstream stream(input, std::ios::binary);
    stream << source.text;
    stream.close();
    if (!stream) fail(ErrorCode::kIo, "{} cannot be written; is the disk full? TMPDIR chooses another", input.string());

    std::vector<std::string> words = command(*clang, options);
    words.insert(words.end(), {"-o", output.string(), input.string()});
    const ProgramResult result = run_program(words, folder, limit());
    if (result.stopped)
        fail(ErrorCode::kCompile,
             "clang {} for {}: {}; is the machine overloaded? ROWJIT_CLANG_TIMEOUT sets another limit\n{}",
             clang->version, target.name, result.how, result.output);
    if (!result.succeeded)
        fail(result.exited ? ErrorCode::kCompile : ErrorCode::kEnvironment, "clang {} for {}: {}\n{}", clang->version,
             target.name, result.how, describe_compile_failure(source.text, kFileName, result.output));
    std::string code = read_whole_file(output);
    if (code.empty())
        fail(ErrorCode::kIo, "clang {} for {}: {} cannot be read", clang->version, target.name, output.string());
    return code;
}

}  // namespace rowjit
