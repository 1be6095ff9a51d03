#include "dsl/token_cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/dtype.h"
#include "base/fail.h"

namespace rowjit {
namespace {

constexpr int kMaxDepth = 400;  // parentheses and calls within each other

}  // namespace

const Token& TokenCursor::peek(std::size_t ahead) const {
    return tokens_[std::min(position_ + ahead, tokens_.size() - 1)];
}

Token TokenCursor::next() {
    const Token token = peek();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
}

bool TokenCursor::at(std::string_view text, std::size_t ahead) const {
    const Token& token = peek(ahead);
    return (token.kind == Token::Kind::kSymbol || token.kind == Token::Kind::kWord) && token.text == text;
}

bool TokenCursor::accept(std::string_view text) {
    if (!at(text)) return false;
    next();
    return true;
}

void TokenCursor::expect(std::string_view symbol) {
    if (!accept(symbol)) refuse(peek(), fmt::format("expected '{}'", symbol));
}

Token TokenCursor::word(std::string_view what) {
    if (peek().kind != Token::Kind::kWord) refuse(peek(), fmt::format("expected {}", what));
    return next();
}

std::int64_t TokenCursor::integer(std::string_view what) {
    const Token token = peek();
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    const bool whole = stop == token.text.data() + token.text.size();
    if (token.kind != Token::Kind::kNumber || error != std::errc() || !whole) {
        refuse(token, fmt::format("expected {}, a whole number below 2^63", what));
    }
    next();
    return value;
}

std::vector<std::int64_t> TokenCursor::integers() {
    std::vector<std::int64_t> found;
    expect("(");
    do found.push_back(integer("a stride"));
    while (accept(","));
    expect(")");
    return found;
}

double TokenCursor::signed_number() {
    const double sign = accept("-") ? -1 : 1;
    if (peek().kind != Token::Kind::kNumber) refuse(peek(), "expected a number");
    return sign * next().number;
}

Dtype TokenCursor::dtype() {
    const Token token = word("a dtype");
    return build(token, [&] { return parse_dtype(token.text); });
}

void TokenCursor::refuse(const Token& token, const std::string& why) const {
    const std::string found = token.kind == Token::Kind::kEnd       ? "the end of the text"
                              : token.kind == Token::Kind::kNewline ? "the end of the line"
                                                                    : fmt::format("'{}'", token.text);
    fail(ErrorCode::kParse, "{}found {}; {}", place(token), found, why);
}

TokenCursor::Level::Level(TokenCursor& cursor, const Token& token) : depth_(cursor.depth_) {
    if (++depth_ <= kMaxDepth) return;
    --depth_;
    cursor.refuse(token, fmt::format("more than {} levels deep; name a part on a line of its own", kMaxDepth));
}

std::string TokenCursor::place(const Token& token) const {
    return fmt::format("{}:{}:{}: ", source_name_, token.line, token.column);
}

}  // namespace rowjit
