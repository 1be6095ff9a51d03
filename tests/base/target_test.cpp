#include "base/target.h"

#include <doctest/doctest.h>

#include "rowjit/error.h"

using namespace rowjit;

TEST_CASE("a target is found by name and keeps its feature suffix") {
    const Target target = find_target("gfx942:xnack-");
    CHECK(target.name == "gfx942:xnack-");
    CHECK(target.warp_size == 64);
    CHECK(target.backend == Backend::kHip);
}

TEST_CASE("an unknown target is refused with the known ones") {
    CHECK_THROWS_WITH_AS(find_target("sm_12"), doctest::Contains("sm_90a"), Error);
}
