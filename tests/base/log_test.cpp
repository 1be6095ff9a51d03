#include "base/log.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/cache/fixture.h"

using namespace rowjit;

TEST_CASE("a sink takes over the messages that pass the level") {
    const CapturedLog captured;
    log(LogLevel::kWarning, "{} of {}", 1, 2);
    log(LogLevel::kDebug, "not this one");
    CHECK(captured.messages() == std::vector<std::string>{"1 of 2"});
}

TEST_CASE("log_once says a key's first message only") {
    const CapturedLog captured;
    for (int i = 0; i < 3; ++i) log_once("log_test key", LogLevel::kWarning, "message {}", i);
    CHECK(captured.messages() == std::vector<std::string>{"message 0"});
}

TEST_CASE("the level decides what is logged, and off is silence") {
    const CapturedLog captured;
    const LogLevel before = log_level();
    set_log_level(LogLevel::kOff);
    log(LogLevel::kError, "unheard");
    set_log_level(LogLevel::kDebug);
    log(LogLevel::kDebug, "heard");
    set_log_level(before);
    CHECK(captured.messages() == std::vector<std::string>{"heard"});
}

TEST_CASE("a sink that throws does not end the work that logs") {
    set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("sink"); });
    CHECK_NOTHROW(log(LogLevel::kError, "lost"));
    set_log_sink(nullptr);
}

TEST_CASE("only the five names are levels") {
    for (const LogLevel level :
         {LogLevel::kOff, LogLevel::kError, LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug})
        CHECK(parse_log_level(name(level)) == level);
    CHECK_FALSE(parse_log_level("WARNING"));
    CHECK_FALSE(parse_log_level(""));
}
