#include "tools/file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/fail.h"

namespace rowjit {

std::string read_text(const std::string& path, std::string_view what) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    std::error_code ignored;
    // A directory opens, and reads as nothing.
    if (!file || std::filesystem::is_directory(path, ignored))
        fail(ErrorCode::kIo, "{} '{}' cannot be read; check the path and its permissions", what, path);
    return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& bytes) {
    const std::filesystem::path temporary = path.string() + ".partial";
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << bytes;
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(temporary, path, error);
    if (!file || error) {
        const std::string why = error ? error.message() : std::strerror(errno);
        std::filesystem::remove(temporary, error);
        fail(ErrorCode::kIo, "'{}' cannot be written: {}; free space or choose another place", path.string(), why);
    }
}

}  // namespace rowjit
