// Where vendor libraries lie on Linux machines: the pieces of a search that NVRTC and hipRTC share. The order of the
// search is each toolchain's own.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace rowjit {

// The variable's value, "" when it is not set.
std::string environment_value(const char* variable);

// Entries of `folder` whose names begin with `prefix`, the highest version first; empty when there is no such folder.
std::vector<std::filesystem::path> entries_with_prefix(const std::filesystem::path& folder, std::string_view prefix);

// The library `stem` ("libnvrtc.so") in each folder, with its versions ("libnvrtc.so.13").
std::vector<std::string> libraries_in(const std::vector<std::filesystem::path>& folders, std::string_view stem);

// The folder of the executable or library this code is in, and lib beside it.
std::vector<std::filesystem::path> folders_beside_rowjit();

}  // namespace rowjit
