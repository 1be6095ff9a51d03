// Runs another program to its end or for a limited time, without a shell: arguments are passed as they are.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace rowjit {

struct ProgramResult {
    bool succeeded = false;  // it exited with 0
    bool exited = false;     // by itself, with any status; else it never ran or died by a signal
    bool died = false;       // by a signal of its own
    bool stopped = false;    // it was still running at the end of its time
    std::string how;         // "exit status 1", "signal 9 (Killed)", "could not be started: ..."
    std::string output;      // stdout and stderr, as they came; of converse() stdout alone
    std::string errors;      // of converse(): stderr
};

// A folder in the system's temporary one, for this user alone, removed with what is in it by the destructor.
// Throws Error(kIo) when it cannot be made.
class PrivateFolder {
  public:
    PrivateFolder();
    PrivateFolder(const PrivateFolder&) = delete;
    PrivateFolder& operator=(const PrivateFolder&) = delete;
    ~PrivateFolder();

    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

// `arguments[0]` is the program's path. The child's own temporary files go to `folder`, as does its output while it
// runs. It and what it starts are one process group, which is killed when the program has not ended after `limit`.
ProgramResult run_program(const std::vector<std::string>& arguments, const PrivateFolder& folder,
                          std::chrono::seconds limit);

// A program that is told something and answers at length, in memory alone, so that a full disk does not matter.
struct Conversation {
    std::string_view input;                            // its standard input
    std::chrono::milliseconds silence;                 // it is killed when it has said nothing for so long
    std::function<void(std::string_view bytes)> hear;  // of its standard output, as it comes; must not throw
};

ProgramResult converse(const std::vector<std::string>& arguments, const Conversation& conversation);

// The executable called `name` on PATH; `name` itself when it is a path to one. "" when there is none.
std::string find_program(const std::string& name);

// The file's bytes; "" when it cannot be read.
std::string read_whole_file(const std::filesystem::path& file);

}  // namespace rowjit
