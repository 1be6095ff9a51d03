// What a call that must throw rowjit::Error said.
#pragma once

#include <string>

#include "rowjit/error.h"

namespace rowjit {

// The message; "" when nothing was thrown. Any other exception is let through.
template <class Call>
std::string refusal(ErrorCode code, Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error.code() == code ? error.what() : std::string("another code: ") + error.what();
    }
    return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace rowjit
