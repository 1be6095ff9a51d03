# A compiler cache and a fast linker make the edit-build loop short; both are used when present and never required.

find_program(ROWJIT_CCACHE ccache)
if(ROWJIT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${ROWJIT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ROWJIT_CCACHE})
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
