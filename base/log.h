// The one logger: messages go to standard error (standard output belongs to results), or to whatever an embedding
// program hands in. Logging never throws. A failure that is thrown is not logged as well.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace rowjit {

enum class LogLevel { kOff, kError, kWarning, kInfo, kDebug };  // each includes those before it

// Names the level until set_log_level does: off, error, warning (the default), info, debug.
inline constexpr const char* kLogVariable = "ROWJIT_LOG";

std::string_view name(LogLevel level);
std::optional<LogLevel> parse_log_level(std::string_view text);

LogLevel log_level();
void set_log_level(LogLevel level);

// Takes over every message that passes the level; an empty function gives standard error back. Called from any thread,
// never from two at once; the message carries no line end.
using LogSink = std::function<void(LogLevel, std::string_view message)>;
void set_log_sink(LogSink sink);

void log_message(LogLevel level, std::string_view message) noexcept;

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (level <= log_level()) log_message(level, fmt::format(format, std::forward<Args>(args)...));
}

// True for the first caller in this process to name `key`.
bool first_time(std::string_view key);

// Logs the first message of this key and drops the later ones: a fault that repeats on every launch is said once.
template <class... Args>
void log_once(std::string_view key, LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (first_time(key)) log(level, format, std::forward<Args>(args)...);
}

}  // namespace rowjit
