# rowjit_embed(target file...) turns text files into constants of a C++ library: templates/prelude_cuda.h becomes
#
#     std::string_view rowjit::embedded::prelude_cuda;   // #include "embedded/prelude_cuda.h"
#
# under ${CMAKE_BINARY_DIR}/generated, remade when the file changes. The include path is the caller's to give; rowjit and
# its tests have it. This file is also the script that writes one pair of files (see the end).

function(rowjit_embed target)
  foreach(file IN LISTS ARGN)
    get_filename_component(input ${file} ABSOLUTE)
    get_filename_component(name ${file} NAME_WE)
    set(output ${CMAKE_BINARY_DIR}/generated/embedded/${name})
    add_custom_command(
      OUTPUT ${output}.h ${output}.cpp
      COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DOUTPUT=${output} -DNAME=${name}
              -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
      DEPENDS ${input} ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
      COMMENT "Embedding ${file}"
      VERBATIM)
    target_sources(${target} PRIVATE ${output}.h ${output}.cpp)
  endforeach()
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE OR NOT DEFINED INPUT)
  return()
endif()

# The bytes are written as characters and not as one string literal: compilers may stop at 64 KiB of literal, a template
# may hold any raw-string delimiter, and CMake's own lists would eat semicolons and brackets of the text.
file(READ ${INPUT} digits HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1', " characters "${digits}")
string(REPLACE "'\\x0a', " "'\\n',\n    " characters "${characters}")
get_filename_component(file_name ${INPUT} NAME)

file(WRITE ${OUTPUT}.h "// Generated from ${file_name} by cmake/embed.cmake.
#pragma once

#include <string_view>

namespace rowjit::embedded {

extern const std::string_view ${NAME};

}  // namespace rowjit::embedded
")

# The closing zero keeps the array legal for an empty file. constinit: other constants may be built from this one.
file(WRITE ${OUTPUT}.cpp "// Generated from ${file_name} by cmake/embed.cmake.
#include \"embedded/${NAME}.h\"

namespace rowjit::embedded {

static constexpr char text[] = {
    ${characters}'\\0'};

constinit const std::string_view ${NAME}(text, sizeof text - 1);

}  // namespace rowjit::embedded
")
