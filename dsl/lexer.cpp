#include "dsl/lexer.h"

#include <array>
#include <charconv>
#include <limits>
#include <system_error>

#include "base/fail.h"

namespace rowjit {
namespace {

// The longer ones first.
constexpr std::array<std::string_view, 22> kSymbols = {"==", "!=", "<=", ">=", "&&", "||", "=", "<", ">", "!", "+",
                                                       "-",  "*",  "/",  "%",  "(",  ")",  "[", "]", ",", ":", "@"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
  public:
    Lexer(std::string_view text, std::string_view source_name) : text_(text), source_name_(source_name) {}

    std::vector<Token> run() {
        while (position_ < text_.size()) step();
        add(Token::Kind::kNewline, 0);
        add(Token::Kind::kEnd, 0);
        return std::move(tokens_);
    }

  private:
    void step() {
        const char c = text_[position_];
        if (c == '\n') return newline();
        if (c == ' ' || c == '\t' || c == '\r') {
            ++position_;
        } else if (c == '#') {
            while (position_ < text_.size() && text_[position_] != '\n') ++position_;
        } else if (is_letter(c)) {
            word();
        } else if (is_digit(c) || c == '.') {
            number();
        } else if (c == '"') {
            string();
        } else {
            symbol();
        }
    }

    void newline() {
        if (depth_ == 0) add(Token::Kind::kNewline, 0);
        ++position_;
        ++line_;
        line_start_ = position_;
    }

    void word() {
        std::size_t length = 1;
        while (is_word(position_ + length)) ++length;
        Token& token = add(Token::Kind::kWord, length);
        if (token.text == "inf") token.number = std::numeric_limits<double>::infinity();
        if (token.text == "nan") token.number = std::numeric_limits<double>::quiet_NaN();
        if (token.text == "inf" || token.text == "nan") token.kind = Token::Kind::kNumber;
    }

    void number() {
        double value = 0;
        const char* first = text_.data() + position_;
        const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), value);
        const auto length = static_cast<std::size_t>(end - first);
        if (error == std::errc::result_out_of_range) refuse("the number is outside the range of a double");
        if (error != std::errc()) refuse("expected a digit before or after '.'");
        if (is_word(position_ + length)) refuse("a number runs into a letter; put a space or an operator between them");
        add(Token::Kind::kNumber, length).number = value;
    }

    void string() {
        const std::size_t end = text_.find_first_of("\"\n", position_ + 1);
        if (end == std::string_view::npos || text_[end] == '\n') refuse("the string has no closing '\"' on its line");
        Token& token = add(Token::Kind::kString, end + 1 - position_);
        token.text = token.text.substr(1, token.text.size() - 2);
    }

    void symbol() {
        for (const std::string_view symbol : kSymbols) {
            if (text_.substr(position_, symbol.size()) != symbol) continue;
            if (symbol == "(" || symbol == "[") ++depth_;
            if ((symbol == ")" || symbol == "]") && depth_ > 0) --depth_;
            add(Token::Kind::kSymbol, symbol.size());
            return;
        }
        const auto byte = static_cast<unsigned char>(text_[position_]);
        if (byte < 0x20 || byte >= 0x7F) refuse(fmt::format("byte 0x{:02X} stands outside a comment", byte));
        refuse(fmt::format("'{}' is no part of the language", text_[position_]));
    }

    Token& add(Token::Kind kind, std::size_t length) {
        tokens_.push_back({kind, text_.substr(position_, length), 0, line_, column()});
        position_ += length;
        return tokens_.back();
    }

    bool is_word(std::size_t position) const {
        return position < text_.size() && (is_letter(text_[position]) || is_digit(text_[position]));
    }

    int column() const { return static_cast<int>(position_ - line_start_) + 1; }

    [[noreturn]] void refuse(std::string_view why) const {
        fail(ErrorCode::kParse, "{}:{}:{}: {}", source_name_, line_, column(), why);
    }

    std::string_view text_;
    std::string_view source_name_;
    std::size_t position_ = 0;
    std::size_t line_start_ = 0;
    int line_ = 1;
    int depth_ = 0;  // of open parentheses and brackets
    std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text, std::string_view source_name) {
    return Lexer(text, source_name).run();
}

}  // namespace rowjit
