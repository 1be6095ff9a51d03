#include "base/environment.h"

#include <doctest/doctest.h>

#include "base/check.h"
#include "rowjit/error.h"
#include "tests/cache/fixture.h"

using namespace rowjit;

TEST_CASE("an unset or empty variable has no value") {
    const ScopedVariable unset("ROWJIT_CPU_THREADS", nullptr);
    CHECK_FALSE(environment_integer("ROWJIT_CPU_THREADS"));
    const ScopedVariable empty("ROWJIT_CPU_THREADS", "");
    CHECK_FALSE(environment_integer("ROWJIT_CPU_THREADS"));
}

TEST_CASE("values are parsed strictly, and the message says what would do") {
    const struct {
        const char* name;
        const char* refused;
        const char* remedy;
    } cases[] = {
        {"ROWJIT_CPU_THREADS", "8 ", "from 1 to 4096"},   {"ROWJIT_CPU_THREADS", "0", "from 1 to 4096"},
        {"ROWJIT_CPU_THREADS", "0x8", "from 1 to 4096"},  {"ROWJIT_CACHE_DIR", "cache", "an absolute path"},
        {"ROWJIT_LOG", "verbose", "off, error, warning"}, {"ROWJIT_TESTS_REQUIRE_TOOLCHAINS", "yes", "0 or 1"}};
    for (const auto& one : cases) {
        const ScopedVariable set(one.name, one.refused);
        CHECK_THROWS_WITH_AS(environment_text(one.name), doctest::Contains(one.remedy), Error);
        CHECK_THROWS_WITH_AS(check_environment(), doctest::Contains(one.name), Error);
    }
}

TEST_CASE("good values are read") {
    const ScopedVariable threads("ROWJIT_CPU_THREADS", "8");
    const ScopedVariable flag("ROWJIT_TESTS_REQUIRE_TOOLCHAINS", "1");
    CHECK(environment_integer("ROWJIT_CPU_THREADS") == 8);
    CHECK(environment_flag("ROWJIT_TESTS_REQUIRE_TOOLCHAINS"));
}

TEST_CASE("a misspelt variable is warned about once") {
    const ScopedVariable misspelt(
        "ROWJIT_"
        "CAHCE_DIR",
        "/x");
    const CapturedLog log;
    check_environment();
    check_environment();
    CHECK(log.count("CAHCE_DIR") == 1);
}

TEST_CASE("the report lists every variable with its problem") {
    const ScopedVariable wrong("ROWJIT_LOG", "verbose");
    bool found = false;
    for (const EnvironmentReport& report : environment_report()) {
        CHECK_FALSE(report.meaning.empty());
        CHECK(report.problem.empty() == (report.name != "ROWJIT_LOG"));
        found = found || (report.name == "ROWJIT_LOG" && report.value == "verbose");
    }
    CHECK(found);
}

TEST_CASE("reading a variable that is not in the table is a bug") {
    CHECK_THROWS_AS(environment_text("ROWJIT_"
                                     "NONE"),
                    InternalError);
}
