#include "compiler/toolchain/compile_failure.h"

#include <fmt/format.h>

#include <charconv>
#include <set>

namespace rowjit {
namespace {

// Enough for dozens of diagnostics; past that the first ones are the cause of the rest.
constexpr std::size_t kMaxLogBytes = 16384;
constexpr std::size_t kMaxLines = 24;

bool ends_path(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '"' || c == '\''; }

// The log with every path that ends in `file_name` cut down to the name.
std::string without_folders(std::string_view log, std::string_view file_name) {
    std::string text;
    std::size_t from = 0;
    for (std::size_t at = log.find(file_name); at != std::string_view::npos; at = log.find(file_name, from)) {
        std::size_t path = at;
        while (path > from && !ends_path(log[path - 1])) --path;
        text.append(log.substr(from, path - from)).append(file_name);
        from = at + file_name.size();
    }
    return text.append(log.substr(from));
}

std::set<std::size_t> named_lines(std::string_view log, std::string_view file_name) {
    std::set<std::size_t> lines;
    for (std::size_t at = log.find(file_name); at != std::string_view::npos; at = log.find(file_name, at + 1)) {
        const std::string_view rest = log.substr(at + file_name.size());
        if (rest.empty() || (rest[0] != ':' && rest[0] != '(')) continue;
        std::size_t line = 0;
        std::from_chars(rest.data() + 1, rest.data() + rest.size(), line);
        if (line > 0 && lines.size() < kMaxLines) lines.insert(line);
    }
    return lines;
}

}  // namespace

std::string describe_compile_failure(std::string_view source_text, std::string_view file_name, std::string_view log) {
    std::string message = without_folders(log, file_name);
    if (message.size() > kMaxLogBytes) message.replace(kMaxLogBytes, std::string::npos, "\n... (log cut)");
    while (!message.empty() && (message.back() == '\n' || message.back() == '\0')) message.pop_back();

    const std::set<std::size_t> lines = named_lines(message, file_name);
    std::size_t number = 1;
    for (std::size_t from = 0; from < source_text.size() && !lines.empty(); ++number) {
        const std::size_t end = std::min(source_text.find('\n', from), source_text.size());
        if (lines.contains(number))
            fmt::format_to(std::back_inserter(message), "\n{:6} | {}", number, source_text.substr(from, end - from));
        from = end + 1;
    }
    return message;
}

}  // namespace rowjit
