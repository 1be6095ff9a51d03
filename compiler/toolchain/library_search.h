// Where vendor libraries lie on Linux machines: the pieces of a search that compilers and matrix libraries share. The
// order of the search is each one's own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/declined.h"

namespace rowjit {

// A variable that is the system's or a vendor's, not one of ours (base/environment.h); "" when it is not set.
std::string system_variable(const char* name);

// Entries of `folder` whose names begin with `prefix`, the highest version first; empty when there is no such folder.
std::vector<std::filesystem::path> entries_with_prefix(const std::filesystem::path& folder, std::string_view prefix);

// The libraries `stem` ("libnvrtc.so") with their versions ("libnvrtc.so.13"): for each folder, for each stem.
std::vector<std::string> libraries_in(const std::vector<std::filesystem::path>& folders,
                                      const std::vector<std::string>& stems);

// What the user's variable `name` chooses: its file, or the libraries in its folder; the only candidates then. nullopt
// when it is not set.
std::optional<std::vector<std::string>> chosen_libraries(const char* name, const std::vector<std::string>& stems);

// The folder of the executable or library this code is in, and lib beside it.
std::vector<std::filesystem::path> folders_beside_rowjit();

// The folders of CUDA toolkits, newest version last but for /usr/local/cuda and those that the environment names.
std::vector<std::filesystem::path> cuda_toolkit_folders();

// `inside` each Python installation's site-packages, that of rowjit's own wheel first: wheels unpack to nvidia/cu13
// (CUDA 13), or to a folder for each library (11 and 12).
std::vector<std::filesystem::path> python_wheel_folders(const std::vector<std::string>& inside);

// The first candidate that `open` offers to use; declines with every reason.
template <class T>
Offer<T> open_first(const std::vector<std::string>& candidates, Offer<T> (*open)(const std::string& candidate)) {
    std::string reasons;
    for (const std::string& candidate : candidates) {
        Offer<T> opened = open(candidate);
        if (opened) return opened;
        reasons += "\n  " + opened.reason();
    }
    return Declined{reasons};
}

}  // namespace rowjit
