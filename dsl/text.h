// What printing (text.cpp) and parsing (parse.cpp, parse_expression.cpp) of the text form share. The language is in
// docs/text-form.md.
#pragma once

#include <array>
#include <string_view>

#include "dsl/ops.h"

namespace rowjit {

struct Infix {
    std::string_view symbol;
    int precedence;  // as in C: the greater binds tighter
    Op op;
};

inline constexpr std::array kInfix = {
    Infix{"||", 1, Op::kOr}, Infix{"&&", 2, Op::kAnd}, Infix{"==", 3, Op::kEq}, Infix{"!=", 3, Op::kNe},
    Infix{"<", 4, Op::kLt},  Infix{"<=", 4, Op::kLe},  Infix{">", 4, Op::kGt},  Infix{">=", 4, Op::kGe},
    Infix{"+", 5, Op::kAdd}, Infix{"-", 5, Op::kSub},  Infix{"*", 6, Op::kMul}, Infix{"/", 6, Op::kDiv},
};

// What printing calls a value without a label: a letter and a number. Read back it is no label, so that emitted code is
// the same.
inline constexpr char kNumbered = 'v';
inline bool is_numbered(std::string_view name) {
    return name.size() > 1 && name[0] == kNumbered && name.find_first_not_of("0123456789", 1) == name.npos;
}

}  // namespace rowjit
