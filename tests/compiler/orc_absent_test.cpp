// A build without LLVM still links what asks for the CPU backend, and says what is missing.
#include <doctest/doctest.h>

#include "compiler/toolchain/orc.h"
#include "rowjit/error.h"

namespace rowjit {

TEST_CASE("without LLVM, compiling for the CPU is refused with the way to get it") {
    CHECK(!has_cpu_toolchain());
    const char* remedy =
        "this build of rowjit has no CPU backend; install llvm-19-dev and configure with -DROWJIT_LLVM=ON";
    CHECK_THROWS_WITH_AS(compile_cpu(Kernel{}, find_target("native")), remedy, Error);
    CHECK_THROWS_WITH_AS(load_cpu_object(Artifact{}), remedy, Error);
    CHECK_THROWS_WITH_AS(host_cpu_target(), remedy, Error);
}

}  // namespace rowjit
