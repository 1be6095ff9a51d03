// Words, numbers and symbols of the text form, each with its place.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace rowjit {

struct Token {
    enum class Kind : std::uint8_t { kWord, kNumber, kString, kSymbol, kNewline, kEnd };

    Kind kind = Kind::kEnd;
    std::string_view text = {};  // as written; without the quotes of a string
    double number = 0;           // kNumber; words "inf" and "nan" are numbers
    int line = 1;
    int column = 1;
};

// The tokens of `text`, which must outlive them, with one kEnd at the end. Newlines inside parentheses and brackets are
// space, and so are comments. Throws Error(kParse) that opens with "source_name:line:column: ".
std::vector<Token> tokenize(std::string_view text, std::string_view source_name);

}  // namespace rowjit
