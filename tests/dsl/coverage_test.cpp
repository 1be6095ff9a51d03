// What holds tests to the record of what they cover.
#include "tests/support/coverage.h"

#include <doctest/doctest.h>

using namespace rowjit;

namespace {

constexpr std::string_view kRecord = R"({"a_test": {"checks": "errors", "in_ci": "all", "targets": ["cpu"],
    "ops": {"silu": {"bf16": ["default"], "f32": ["bias=true", "default"]}}}})";

Coverage covered(bool with_option, std::string_view target = "cpu") {
    Coverage coverage("a_test", "errors", target);
    coverage.add("silu", {64, bf16, {}});
    coverage.add("silu", {128, bf16, {}});
    coverage.add("silu", {64, f32, {}});
    if (with_option) coverage.add("silu", {64, f32, {{"bias", "true"}}});
    return coverage;
}

}  // namespace

TEST_CASE("a test that covers what the record says agrees, at whatever widths") {
    CHECK(covered(true).agrees(kRecord, false));
}

TEST_CASE("a test that covers less than the record says does not agree") {
    CHECK(!covered(false).agrees(kRecord, false));
    CHECK(!covered(false).agrees(kRecord, true));
    CHECK(!covered(true, "sm_90a").agrees(kRecord, true));
    CHECK(!Coverage("other_test", "errors", "cpu").agrees(kRecord, true));
}

TEST_CASE("a test that covers more agrees only where more is fine") {
    Coverage more = covered(true);
    more.add("gelu", {64, bf16, {}});
    CHECK(!more.agrees(kRecord, false));
    CHECK(more.agrees(kRecord, true));
}
