// A place in the tokens of a text, what is read there, and the refusals that open with it: what every part of the
// parser of the text form stands on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dsl/lexer.h"
#include "rowjit/dtype.h"
#include "rowjit/error.h"

namespace rowjit {

// Whatever it refuses is an Error(kParse) that opens with "source_name:line:column: ".
class TokenCursor {
  public:
    // Throws Error(kParse) for a text that has no tokens. The text must outlive the cursor.
    TokenCursor(std::string_view text, std::string_view source_name)
        : source_name_(source_name), tokens_(tokenize(text, source_name)) {}

    const Token& peek(std::size_t ahead = 0) const;
    Token next();
    bool at(std::string_view text, std::size_t ahead = 0) const;  // a symbol or a word
    bool accept(std::string_view text);                           // goes past it where it is next
    void expect(std::string_view symbol);                         // refuses what is not that symbol

    // Each refuses what is not one; `what` says what is expected.
    Token word(std::string_view what);
    std::int64_t integer(std::string_view what);
    std::vector<std::int64_t> integers();  // in parentheses
    double signed_number();
    Dtype dtype();

    [[noreturn]] void refuse(const Token& token, const std::string& why) const;

    // What the graph makes of `build`; its refusals get the place of `token`.
    template <class Build>
    std::invoke_result_t<Build> build(const Token& token, Build build) const {
        try {
            return build();
        } catch (const Error& error) {
            throw Error(error.code(), place(token) + error.what());
        }
    }

    // Counts a level of recursion while it lives. The levels are bounded, so that no text overflows the stack.
    class Level {
      public:
        Level(TokenCursor& cursor, const Token& token);
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        ~Level() { --depth_; }

      private:
        int& depth_;
    };

  private:
    std::string place(const Token& token) const;

    std::string_view source_name_;
    std::vector<Token> tokens_;
    std::size_t position_ = 0;
    int depth_ = 0;
};

}  // namespace rowjit
