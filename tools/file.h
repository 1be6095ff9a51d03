// Files that the command line's user names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace rowjit {

// What it holds. `what` it is, for the message: throws Error(kIo).
std::string read_text(const std::string& path, std::string_view what);

// It appears whole or not at all: written beside its place, then renamed. Throws Error(kIo).
void write_file(const std::filesystem::path& path, const std::string& bytes);

}  // namespace rowjit
