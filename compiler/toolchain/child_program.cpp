#include "compiler/toolchain/child_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

// posix_spawn's two objects, destroyed on every path, for a child in a process group of its own.
struct SpawnSettings {
    SpawnSettings() {
        posix_spawn_file_actions_init(&files);
        posix_spawnattr_init(&attributes);
        // The embedding program may block signals in its threads; a child that inherits this cannot be stopped.
        sigset_t none;
        sigemptyset(&none);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
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
std::optional<int> wait_for(pid_t child, std::chrono::milliseconds limit, bool* stopped) {
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

void describe_end(std::optional<int> status, ProgramResult* result) {
    if (!status) {
        // The embedding program ignores SIGCHLD or waits for every child itself; then nobody else learns the status.
        result->how =
            fmt::format("its exit status was taken by another part of this process: {}", std::strerror(errno));
    } else if (WIFEXITED(*status)) {
        result->exited = true;
        result->succeeded = WEXITSTATUS(*status) == 0;
        result->how = fmt::format("exit status {}", WEXITSTATUS(*status));
    } else {
        result->died = true;
        result->how = fmt::format("signal {} ({})", WTERMSIG(*status), strsignal(WTERMSIG(*status)));
    }
}

void shut(int* descriptor) {
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}

// A socket and not a pipe: writing to a child that has died is then an error of that write, not a signal to this
// process.
struct Channel {
    Channel() = default;
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    ~Channel() {
        shut(&ours);
        shut(&theirs);
    }

    bool open() {
        std::array<int, 2> ends{};
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
        ours = ends[0];
        theirs = ends[1];
        return true;
    }

    int ours = -1;
    int theirs = -1;
};

// Writes what there is room for; closes at the end of the text, or where nobody reads it any more.
void speak(Channel* channel, std::string_view* text) {
    const ssize_t sent = send(channel->ours, text->data(), text->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) text->remove_prefix(static_cast<std::size_t>(sent));
    const bool failed = sent < 0 && errno != EAGAIN && errno != EINTR;
    if (text->empty() || failed) shut(&channel->ours);
}

// Takes what has come; closes where the child has.
void listen(Channel* channel, std::string* text, const std::function<void(std::string_view)>& hear) {
    std::array<char, 65536> bytes{};
    const ssize_t got = recv(channel->ours, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
        const std::string_view heard(bytes.data(), static_cast<std::size_t>(got));
        text->append(heard);
        if (hear) hear(heard);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        shut(&channel->ours);
    }
}

// Until the child has closed its output. False when it was silent for too long.
bool exchange(std::array<Channel, 3>* channels, const Conversation& conversation, ProgramResult* result) {
    auto& [input, output, errors] = *channels;
    std::string_view left = conversation.input;
    if (left.empty()) shut(&input.ours);
    while (output.ours >= 0 || errors.ours >= 0) {
        // A descriptor of -1 is one that poll passes over.
        std::array<pollfd, 3> watched = {pollfd{input.ours, POLLOUT, 0}, pollfd{output.ours, POLLIN, 0},
                                         pollfd{errors.ours, POLLIN, 0}};
        const int ready = poll(watched.data(), watched.size(), static_cast<int>(conversation.silence.count()));
        if (ready == 0) return false;
        if (ready < 0) continue;  // a signal of this process
        if (watched[0].revents != 0) speak(&input, &left);
        if (watched[1].revents != 0) listen(&output, &result->output, conversation.hear);
        if (watched[2].revents != 0) listen(&errors, &result->errors, {});
    }
    return true;
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
    } else {
        describe_end(status, &result);
    }
    result.output = read_whole_file(output);
    return result;
}

ProgramResult converse(const std::vector<std::string>& arguments, const Conversation& conversation) {
    ProgramResult result;
    std::array<Channel, 3> channels;  // the child's standard input, output and errors
    SpawnSettings settings;
    for (int stream = 0; stream < 3; ++stream) {
        Channel& channel = channels[static_cast<std::size_t>(stream)];
        if (!channel.open()) {
            result.how = fmt::format("could not be started: {}", std::strerror(errno));
            return result;
        }
        posix_spawn_file_actions_adddup2(&settings.files, channel.theirs, stream);
    }
    std::vector<std::string> words = arguments;
    pid_t child = 0;
    const int error =
        posix_spawn(&child, words[0].c_str(), &settings.files, &settings.attributes, pointers(words).data(), environ);
    if (error != 0) {
        result.how = fmt::format("could not be started: {}", std::strerror(error));
        return result;
    }
    for (Channel& channel : channels) shut(&channel.theirs);
    result.stopped = !exchange(&channels, conversation, &result);
    if (result.stopped) kill(-child, SIGKILL);
    const std::optional<int> status = wait_for(child, conversation.silence, &result.stopped);
    if (result.stopped) {
        result.how = fmt::format("it said nothing for {} ms and was stopped", conversation.silence.count());
    } else {
        describe_end(status, &result);
    }
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
