// What a launch that is refused says.
#pragma once

#include <fmt/format.h>

#include <array>
#include <utility>

#include "rowjit/engine.h"
#include "rowjit/error.h"

namespace rowjit {

// A launch must not allocate, so its message lives in a buffer of the thread.
template <class... Args>
Status refuse(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) noexcept {
    static thread_local std::array<char, 1280> buffer;
    const auto end = fmt::format_to_n(buffer.data(), buffer.size() - 1, format, std::forward<Args>(args)...);
    *end.out = '\0';
    return {code, buffer.data()};
}

}  // namespace rowjit
