// What a call that must throw rowjit::Error said.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "rowjit/error.h"

namespace rowjit {

// The message; "no error" when nothing was thrown. Checks the code; any other exception is let through.
template <class Call>
std::string refusal(ErrorCode code, Call call) {
    try {
        call();
    } catch (const Error& error) {
        CHECK(error.code() == code);
        return error.what();
    }
    return "no error";
}

inline bool mentions(const std::string& message, const std::string& part) {
    return message.find(part) != std::string::npos;
}

}  // namespace rowjit
