// Files that the command line's user names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "cache/bundle.h"

namespace rowjit {

// What it holds. `what` it is, for the message: throws Error(kIo).
std::string read_text(const std::string& path, std::string_view what);

// It appears whole or not at all: written beside its place, then renamed. Throws Error(kIo).
void write_file(const std::filesystem::path& path, const std::string& bytes);

struct WrittenBundle {
    std::size_t kernels = 0;  // each once
    std::size_t bytes = 0;
};

// The same of a bundle, which nobody else may write to whatever the umask: such a one is refused where it is used.
WrittenBundle write_bundle(const std::string& path, BundleContents contents);

}  // namespace rowjit
