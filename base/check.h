// Internal invariants. A failed RJ_CHECK is a bug in rowjit, never the user's doing: it throws InternalError, which
// names the place and the state so that a report can be acted on. Checks stay on in release builds; none stands in a
// launch.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace rowjit {

class InternalError : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace rowjit

// RJ_CHECK(condition, "format", values...): the detail says which pass and which node or statement.
// An expression, so that g++ sees that RJ_CHECK(false, …) does not return.
#define RJ_CHECK(condition, ...)     \
    static_cast<void>((condition) || \
                      (::rowjit::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)), false))
