#include "tools/file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

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

WrittenBundle write_bundle(const std::string& path, BundleContents contents) {
    std::set<Digest> kernels;
    for (const Entry& kernel : contents.kernels) kernels.insert(kernel.digest);
    const std::string bytes = encode_bundle(std::move(contents));
    write_file(path, bytes);
    constexpr auto kOthersWrite = std::filesystem::perms::group_write | std::filesystem::perms::others_write;
    std::error_code error;
    std::filesystem::permissions(path, kOthersWrite, std::filesystem::perm_options::remove, error);
    if (error) fail(ErrorCode::kIo, "'{}': {}; run chmod go-w on it", path, error.message());
    return {kernels.size(), bytes.size()};
}

}  // namespace rowjit
