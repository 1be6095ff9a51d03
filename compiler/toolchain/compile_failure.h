// What a user sees when a toolchain refuses emitted source: the compiler's log without the folders of temporary files,
// and the source lines it names with their numbers, since the source itself is nowhere on disk.
#pragma once

#include <string>
#include <string_view>

namespace rowjit {

// `file_name` is the name under which the compiler saw the source ("kernel.cu"); a log names lines as file_name:12 or
// file_name(12).
std::string describe_compile_failure(std::string_view source_text, std::string_view file_name, std::string_view log);

}  // namespace rowjit
