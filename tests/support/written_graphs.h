// The texts of graphs as people write them: benchmarks/graphs and examples/graphs. The test that includes it defines
// ROWJIT_SOURCE_DIR.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace rowjit {

inline std::vector<std::filesystem::path> written_graphs() {
    std::vector<std::filesystem::path> found;
    for (const char* folder : {"benchmarks/graphs", "examples/graphs"}) {
        for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(ROWJIT_SOURCE_DIR) / folder))
            found.push_back(file.path());
    }
    std::sort(found.begin(), found.end());
    return found;
}

inline std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Not where inputs are overwritten.
inline bool has_gradient(const std::filesystem::path& file) { return file.stem() != "lamb_step"; }

}  // namespace rowjit
