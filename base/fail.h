// Throwing rowjit::Error with a formatted message. Every message names the op or file, the offending values, and the
// remedy.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "rowjit/error.h"

namespace rowjit {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace rowjit
