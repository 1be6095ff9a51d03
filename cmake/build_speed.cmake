# A compiler cache and a fast linker make the edit-build loop short; both are used when present and never required.
# Either way __FILE__, which failed checks print, is relative to the project: what is installed names no folder of the
# machine that built it, and clones of the project share what ccache keeps.

find_program(ROWJIT_CCACHE ccache)
if(ROWJIT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${ROWJIT_CCACHE})
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
