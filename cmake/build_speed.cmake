# A compiler cache and a fast linker make the edit-build loop short; both are used when present and never required.
# Either way __FILE__, which failed checks print, is relative to the project: what is installed names no folder of the
# machine that built it, and clones of the project share what ccache keeps.

find_program(ROWJIT_CCACHE ccache)
if(ROWJIT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What it has to be told to keep files that use a precompiled header; none of ours expands __TIME__.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_SLOPPINESS=pch_defines,time_macros ${ROWJIT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
else()
  add_compile_options(-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
endif()

include(CheckLinkerFlag)
foreach(linker IN ITEMS mold lld)
  # Asking the compiler rather than the path: g++ before 12 knows no mold, and Debian's lld-19 is found by clang only.
  check_linker_flag(CXX -fuse-ld=${linker} ROWJIT_LINKER_${linker})
  if(ROWJIT_LINKER_${linker})
    add_link_options(-fuse-ld=${linker})
    break()
  endif()
endforeach()

# What tests do themselves they do once; what takes their time is the library and the kernels it makes. g++ 12, seconds
# of a processor: tests/simt/row_reductions_test.cpp, with its sanitizers, takes 28 at -O3 and 11 so, linear_test.cpp 14
# and 9.5, static_rule_test.cpp 5.6 and 4.0, gpu_functions_test.cpp 5.5 and 3.6.
set(ROWJIT_TEST_OPTIONS $<$<CONFIG:Release,RelWithDebInfo>:-O1>)

# What most files include, parsed once for the targets with the same flags rather than once a file. g++ 12, seconds of a
# processor without and with: compiler/plan/group_costs.cpp 3.3 and 1.7, compiler/emit/gpu_steps.cpp 5.6 and 3.2,
# dsl/reverse.cpp 9.4 and 8.5. Every file includes what it uses all the same: the device preset is built without
# (CMAKE_DISABLE_PRECOMPILE_HEADERS), and shows where one does not.
set(ROWJIT_COMMON_HEADERS
  <algorithm> <array> <cmath> <cstdint> <cstring> <filesystem> <functional> <map> <memory> <mutex> <optional> <ranges> <set>
  <span> <string> <string_view> <thread> <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # without it ccache keeps no file that uses one
