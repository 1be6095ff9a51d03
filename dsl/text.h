// What printing (text.cpp) and parsing (parse_expression.cpp) of the text form share: the infix operators. The language
// is in docs/text-form.md.
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

}  // namespace rowjit
