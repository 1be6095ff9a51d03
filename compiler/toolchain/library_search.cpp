#include "compiler/toolchain/library_search.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/dynamic_library.h"
#include "base/environment.h"

namespace rowjit {

namespace fs = std::filesystem;

std::string system_variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

std::vector<fs::path> entries_with_prefix(const fs::path& folder, std::string_view prefix) {
    std::vector<fs::path> entries;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        if (it->path().filename().string().starts_with(prefix)) entries.push_back(it->path());
    }
    std::sort(entries.begin(), entries.end(), [](const fs::path& a, const fs::path& b) {
        return strverscmp(a.filename().c_str(), b.filename().c_str()) > 0;
    });
    return entries;
}

std::vector<std::string> libraries_in(const std::vector<fs::path>& folders, const std::vector<std::string>& stems) {
    std::vector<std::string> libraries;
    for (const fs::path& folder : folders) {
        for (const std::string& stem : stems) {
            for (const fs::path& file : entries_with_prefix(folder, stem)) libraries.push_back(file.string());
        }
    }
    return libraries;
}

std::optional<std::vector<std::string>> chosen_libraries(const char* name, const std::vector<std::string>& stems) {
    const std::optional<std::string> chosen = environment_text(name);
    if (!chosen) return std::nullopt;
    std::error_code error;
    if (!fs::is_directory(*chosen, error)) return {{*chosen}};
    std::vector<std::string> inside = libraries_in({*chosen}, stems);
    // A folder without the library: opening the name it should have gives the loader's message.
    if (inside.empty()) inside.push_back((fs::path(*chosen) / stems.front()).string());
    return inside;
}

std::vector<fs::path> python_wheel_folders(const std::vector<std::string>& inside) {
    // What holds rowjit: the site-packages of its package, bin of its command. An environment need not be activated.
    const fs::path around = fs::path(own_file()).parent_path().parent_path();
    std::vector<fs::path> folders;
    for (const std::string& folder : inside) folders.push_back(around / folder);
    std::vector<fs::path> prefixes = {around};
    for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
        if (const std::string value = system_variable(variable); !value.empty()) prefixes.emplace_back(value);
    }
    prefixes.emplace_back("/usr/local");
    prefixes.emplace_back("/usr");
    if (const std::string home = system_variable("HOME"); !home.empty()) {
        prefixes.push_back(fs::path(home) / ".local");
        const std::vector<fs::path> pyenv = entries_with_prefix(fs::path(home) / ".pyenv/versions", "");
        prefixes.insert(prefixes.end(), pyenv.begin(), pyenv.end());
    }
    for (const fs::path& prefix : prefixes) {
        for (const fs::path& python : entries_with_prefix(prefix / "lib", "python3")) {
            for (const char* packages : {"site-packages", "dist-packages"}) {
                for (const std::string& folder : inside) folders.push_back(python / packages / folder);
            }
        }
    }
    return folders;
}

std::vector<fs::path> cuda_toolkit_folders() {
    std::vector<fs::path> toolkits;
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const std::string value = system_variable(variable); !value.empty()) toolkits.emplace_back(value);
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

std::vector<fs::path> folders_beside_rowjit() {
    const fs::path folder = fs::path(own_file()).parent_path();
    if (folder.empty()) return {};
    return {folder, folder.parent_path() / "lib"};
}

}  // namespace rowjit
