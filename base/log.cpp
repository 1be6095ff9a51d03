#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/fork_mutex.h"

namespace rowjit {

namespace {

struct LevelRow {
    LogLevel level;
    std::string_view name;
    spdlog::level::level_enum spdlog_level;
};

constexpr std::array kLevels = {
    LevelRow{LogLevel::kOff, "off", spdlog::level::off},
    LevelRow{LogLevel::kError, "error", spdlog::level::err},
    LevelRow{LogLevel::kWarning, "warning", spdlog::level::warn},
    LevelRow{LogLevel::kInfo, "info", spdlog::level::info},
    LevelRow{LogLevel::kDebug, "debug", spdlog::level::debug},
};

const LevelRow& row(LogLevel level) { return kLevels[static_cast<std::size_t>(level)]; }

// A value that does not parse is reported where the environment is checked (base/environment.h), not here: the logger
// is what reports it.
LogLevel initial_level() {
    const char* text = std::getenv(kLogVariable);
    return parse_log_level(text == nullptr ? "" : text).value_or(LogLevel::kWarning);
}

struct Logger {
    std::atomic<LogLevel> level{initial_level()};
    ForkMutex mutex;  // guards all below
    LogSink sink;
    std::set<std::string, std::less<>> seen;
    spdlog::logger standard_error{"rowjit", std::make_shared<spdlog::sinks::stderr_sink_st>()};

    Logger() {
        standard_error.set_level(spdlog::level::trace);  // `level` decides
        standard_error.set_pattern("rowjit %l: %v");
    }
};

// Never destroyed, so that threads which outlive main() and destructors of other statics may still log.
Logger& logger() {
    static Logger* const only = new Logger;
    return *only;
}

}  // namespace

std::string_view name(LogLevel level) { return row(level).name; }

std::optional<LogLevel> parse_log_level(std::string_view text) {
    for (const LevelRow& candidate : kLevels)
        if (candidate.name == text) return candidate.level;
    return std::nullopt;
}

LogLevel log_level() { return logger().level.load(std::memory_order_relaxed); }

void set_log_level(LogLevel level) { logger().level.store(level, std::memory_order_relaxed); }

void set_log_sink(LogSink sink) {
    Logger& log = logger();
    const std::lock_guard lock(log.mutex);
    log.sink = std::move(sink);
}

void log_message(LogLevel level, std::string_view message) noexcept try {
    Logger& log = logger();
    if (level == LogLevel::kOff || level > log_level()) return;
    const std::lock_guard lock(log.mutex);
    if (log.sink)
        log.sink(level, message);
    else
        log.standard_error.log(row(level).spdlog_level, message);
} catch (...) {  // NOLINT(bugprone-empty-catch)
    // A sink that throws, or no memory for the message: the work that logs matters more than the message.
}

bool first_time(std::string_view key) {
    Logger& log = logger();
    const std::lock_guard lock(log.mutex);
    return log.seen.emplace(key).second;
}

}  // namespace rowjit
