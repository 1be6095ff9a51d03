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
# of a processor: simt_test.cpp, with its sanitizers, takes 51 at -O3 and 28 so, emit_gpu_test.cpp 13 and 7.5,
# linear_test.cpp 9.6 and 6.4, plan_test.cpp 6.9 and 4.8.
set(ROWJIT_TEST_OPTIONS $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
