#include "compiler/toolchain/child_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/fail.h"
#include "compiler/toolchain/library_search.h"

namespace rowjit {
namespace {

namespace fs = std::filesystem;

// posix_spawn's two objects, destroyed on every path.
struct SpawnSettings {
    SpawnSettings() {
        posix_spawn_file_actions_init(&files);
        posix_spawnattr_init(&attributes);
    }
    SpawnSettings(const SpawnSettings&) = delete;
    SpawnSettings& operator=(const SpawnSettings&) = delete;
    ~SpawnSettings() {
        posix_spawn_file_actions_destroy(&files);
        posix_spawnattr_destroy(&attributes);
    }

    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& string : strings) result.push_back(string.data());
    result.push_back(nullptr);
    return result;
}

// This process's environment with the temporary folder replaced.
std::vector<std::string> environment_with(const fs::path& temporary) {
    constexpr std::string_view variable = "TMPDIR=";
    std::vector<std::string> environment;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        if (!std::string_view(*entry).starts_with(variable)) environment.emplace_back(*entry);
    }
    environment.push_back(std::string(variable) + temporary.string());
    return environment;
}

// The child's wait status, or nothing with errno ECHILD where nobody learns it any more. Sets `stopped` when it had to
// be killed.
//
// Asking again and again is what works everywhere: a descriptor of a process (pidfd) is too young for the kernels of
// many clusters, and the signal of a child's end belongs to the embedding program. A compile takes some 200 ms.
std::optional<int> wait_for(pid_t child, std::chrono::seconds limit, bool* stopped) {
    constexpr std::chrono::milliseconds pause{2};
    const auto end = std::chrono::steady_clock::now() + limit;
    int status = 0;
    while (true) {
        const pid_t waited = waitpid(child, &status, *stopped ? 0 : WNOHANG);
        if (waited == child) return status;
        if (waited < 0 && errno != EINTR) return std::nullopt;
        if (waited == 0 && std::chrono::steady_clock::now() >= end) {
            kill(-child, SIGKILL);
            *stopped = true;
        } else if (waited == 0) {
            std::this_thread::sleep_for(pause);
        }
    }
}

bool is_program(const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

PrivateFolder::PrivateFolder() {
    std::error_code error;
    fs::path base = fs::temp_directory_path(error);
    if (error) base = "/tmp";
    std::string name = (base / "rowjit.XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
        fail(ErrorCode::kIo, "{}: a temporary folder cannot be made: {}; set TMPDIR to a folder that can be written",
             base.string(), std::strerror(errno));
    path_ = name;
}

PrivateFolder::~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

ProgramResult run_program(const std::vector<std::string>& arguments, const PrivateFolder& folder,
                          std::chrono::seconds limit) {
    const fs::path output = folder.path() / "output";
    SpawnSettings settings;
    constexpr int kWrite = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;
    posix_spawn_file_actions_addopen(&settings.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&settings.files, STDOUT_FILENO, output.c_str(), kWrite, 0600);
    posix_spawn_file_actions_adddup2(&settings.files, STDOUT_FILENO, STDERR_FILENO);
    // The embedding program may block signals in its threads; a child that inherits this cannot be stopped.
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&settings.attributes, &none);
    posix_spawnattr_setpgroup(&settings.attributes, 0);
    posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);

    std::vector<std::string> words = arguments;
    std::vector<std::string> environment = environment_with(folder.path());
    ProgramResult result;
    pid_t child = 0;
    const int error = posix_spawn(&child, words[0].c_str(), &settings.files, &settings.attributes,
                                  pointers(words).data(), pointers(environment).data());
    if (error != 0) {
        result.how = fmt::format("could not be started: {}", std::strerror(error));
        return result;
    }
    const std::optional<int> status = wait_for(child, limit, &result.stopped);
    if (result.stopped) {
        result.how = fmt::format("it had not ended after {} s and was stopped", limit.count());
    } else if (!status) {
        // The embedding program ignores SIGCHLD or waits for every child itself; then nobody else learns the status.
        result.how = fmt::format("its exit status was taken by another part of this process: {}", std::strerror(errno));
    } else if (WIFEXITED(*status)) {
        result.exited = true;
        result.succeeded = WEXITSTATUS(*status) == 0;
        result.how = fmt::format("exit status {}", WEXITSTATUS(*status));
    } else {
        result.how = fmt::format("signal {} ({})", WTERMSIG(*status), strsignal(WTERMSIG(*status)));
    }
    result.output = read_whole_file(output);
    return result;
}

std::string find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
    const std::string path = system_variable("PATH");
    for (std::size_t from = 0; from < path.size();) {
        const std::size_t end = std::min(path.find(':', from), path.size());
        const fs::path candidate = fs::path(path.substr(from, end - from)) / name;
        if (end > from && is_program(candidate)) return candidate.string();
        from = end + 1;
    }
    return "";
}

std::string read_whole_file(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace rowjit
