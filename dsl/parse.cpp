// Reading the text form (docs/text-form.md): a recursive-descent parser straight to nodes. Whatever is wrong with a
// text is an Error that opens with its place; the graph's own refusals are given theirs here.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/lexer.h"
#include "dsl/library/registry.h"
#include "dsl/text.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Recursion is bounded, so that no text overflows the stack: parentheses and calls within each other, and operators in
// one coordinate.
constexpr int kMaxDepth = 400;
constexpr int kMaxCoordinateOperators = 64;

// A value, or a number that has no dtype yet.
using Operand = std::variant<Value, double>;

bool is_number(const Operand& operand) { return std::holds_alternative<double>(operand); }

struct Argument {
    Token token;  // where it begins
    Operand operand;
};

class Parser {
  public:
    Parser(std::string_view text, std::string_view source_name)
        : source_name_(source_name), tokens_(tokenize(text, source_name)) {}

    Graph parse() {
        while (peek().kind != Token::Kind::kEnd) {
            if (peek().kind != Token::Kind::kNewline) statement();
            if (peek().kind != Token::Kind::kNewline) refuse(peek(), "expected the end of the line");
            next();
        }
        return graph_;
    }

  private:
    // ---- Tokens
    // ------------------------------------------------------------------------------------------------------

    const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(position_ + ahead, tokens_.size() - 1)]; }

    Token next() {
        const Token token = peek();
        if (position_ + 1 < tokens_.size()) ++position_;
        return token;
    }

    bool at(std::string_view text, std::size_t ahead = 0) const {
        const Token& token = peek(ahead);
        return (token.kind == Token::Kind::kSymbol || token.kind == Token::Kind::kWord) && token.text == text;
    }

    bool accept(std::string_view text) {
        if (!at(text)) return false;
        next();
        return true;
    }

    void expect(std::string_view symbol) {
        if (!accept(symbol)) refuse(peek(), fmt::format("expected '{}'", symbol));
    }

    Token word(std::string_view what) {
        if (peek().kind != Token::Kind::kWord) refuse(peek(), fmt::format("expected {}", what));
        return next();
    }

    std::string place(const Token& token) const {
        return fmt::format("{}:{}:{}: ", source_name_, token.line, token.column);
    }

    [[noreturn]] void refuse(const Token& token, const std::string& why) const {
        const std::string found = token.kind == Token::Kind::kEnd       ? "the end of the text"
                                  : token.kind == Token::Kind::kNewline ? "the end of the line"
                                                                        : fmt::format("'{}'", token.text);
        fail(ErrorCode::kParse, "{}found {}; {}", place(token), found, why);
    }

    // What the graph makes of `build`; its refusals get the place of `token`.
    template <class Build>
    std::invoke_result_t<Build> build(const Token& token, Build build) const {
        try {
            return build();
        } catch (const Error& error) {
            throw Error(error.code(), place(token) + error.what());
        }
    }

    // Counts a level of recursion while it lives.
    class Level {
      public:
        Level(Parser& parser, const Token& token) : depth_(parser.depth_) {
            if (++depth_ <= kMaxDepth) return;
            --depth_;
            parser.refuse(token, fmt::format("more than {} levels deep; name a part on a line of its own", kMaxDepth));
        }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        ~Level() { --depth_; }

      private:
        int& depth_;
    };

    // ---- Statements
    // --------------------------------------------------------------------------------------------------

    void statement() {
        struct Statement {
            std::string_view keyword;
            void (Parser::*parse)();
        };
        static constexpr std::array kStatements = {
            Statement{"rows", &Parser::rows},     Statement{"columns", &Parser::columns},
            Statement{"input", &Parser::input},   Statement{"scalar", &Parser::scalar},
            Statement{"output", &Parser::output},
        };
        if (at("=", 1) || at(",", 1)) return assignment();
        for (const Statement& row : kStatements) {
            if (!at(row.keyword)) continue;
            next();
            return (this->*row.parse)();
        }
        refuse(peek(), "a line is 'name = expression', or begins with rows, columns, input, scalar or output");
    }

    void rows() {
        const Token name = word("the axis's name: rows tokens");
        const std::int64_t extent = accept("=") ? integer("the axis's extent") : kRuntimeExtent;
        declare_axis(name, [&] { return graph_.data()->add_row_axis(name.text, extent); });
    }

    void columns() {
        const Token name = word("the axis's name: columns d = 128");
        expect("=");
        const std::int64_t extent = integer("the axis's extent");
        declare_axis(name, [&] { return graph_.columns(name.text, extent).id; });
    }

    template <class Add>
    void declare_axis(const Token& name, Add add) {
        if (axes_.contains(name.text)) refuse(name, "an axis of that name is declared above; choose another");
        axes_[std::string(name.text)] = Axis{build(name, add)};
    }

    void input() {
        const Token name = word("the input's name");
        expect(":");
        const Dtype type = dtype();
        std::vector<AxisId> dims;
        if (accept("[") && !accept("]")) {
            do dims.push_back(axis().id);
            while (accept(","));
            expect("]");
        }
        std::vector<std::int64_t> strides;
        if (accept("strides")) strides = integers();
        define(name, build(name, [&] { return value(graph_.data()->add_input(name.text, type, dims, strides)); }));
    }

    void scalar() {
        const Token name = word("the scalar's name");
        expect(":");
        const Dtype type = dtype();
        if (!accept("=")) refuse(peek(), "expected '=' and the scalar's default");
        const double default_value = signed_number();
        define(name, build(name, [&] { return value(graph_.data()->add_scalar(name.text, type, default_value)); }));
    }

    void assignment() {
        std::vector<Token> names;
        do names.push_back(word("a name"));
        while (accept(","));
        expect("=");
        const Token start = peek();
        std::vector<Value> results = expression_list(names.size());
        if (results.size() < names.size()) {
            refuse(start, fmt::format("{} names for {} results", names.size(), results.size()));
        }
        for (std::size_t i = 0; i < names.size(); ++i) {
            define(names[i], results[i]);
            build(names[i], [&] { return results[i].named(names[i].text); });
        }
    }

    // An expression of `count` results; several come from a composite operation alone.
    std::vector<Value> expression_list(std::size_t count) {
        const Token start = peek();
        if (count == 1) return {typed(start, expression())};
        if (!is_composite(start.text) || !at("(", 1)) {
            refuse(start, "several names are for the results of one operation: sum, y = add_rms_norm(x, r, w)");
        }
        next();
        return composite(start);
    }

    void output() {
        const Token name = word("the output's name");
        const Token start = at("=") ? peek(1) : name;
        const Value result = accept("=") ? typed(start, expression()) : defined(name);
        OutputOptions options;
        while (true) {
            if (accept("alias")) {
                expect("(");
                options.alias = word("the name of an input").text;
                expect(")");
            } else if (accept("accumulate")) {
                options.accumulate = true;
            } else if (accept("strides")) {
                options.column_strides = integers();
            } else {
                break;
            }
        }
        build(name, [&] {
            graph_.output(name.text, result, options);
            return 0;
        });
    }

    // ---- Names
    // -------------------------------------------------------------------------------------------------------

    Value value(NodeId id) const { return {graph_.data(), id}; }

    void define(const Token& name, const Value& value) {
        if (!values_.emplace(name.text, value).second) {
            refuse(name, "a value of that name is defined above; choose another");
        }
    }

    Value defined(const Token& name) const {
        const auto found = values_.find(name.text);
        if (found == values_.end()) refuse(name, "no value of that name is defined above");
        return found->second;
    }

    // A declared axis by its name, an anonymous one by its extent; '@' may stand in front.
    Axis axis() {
        accept("@");
        const Token token = peek();
        if (token.kind == Token::Kind::kNumber) {
            const std::int64_t extent = integer("an extent");
            return build(token, [&] { return graph_.columns(extent); });
        }
        const Token name = word("an axis: a declared name or a column extent");
        const auto found = axes_.find(name.text);
        if (found == axes_.end()) {
            refuse(name, fmt::format("no axis of that name is declared above; write 'rows {0}' or 'columns {0} = …'",
                                     name.text));
        }
        return found->second;
    }

    Dtype dtype() {
        const Token token = word("a dtype");
        return build(token, [&] { return parse_dtype(token.text); });
    }

    // ---- Numbers
    // -----------------------------------------------------------------------------------------------------

    std::int64_t integer(std::string_view what) {
        const Token token = peek();
        std::int64_t value = 0;
        const char* end = token.text.data() + token.text.size();
        const auto [stop, error] = std::from_chars(token.text.data(), end, value);
        if (token.kind != Token::Kind::kNumber || error != std::errc() || stop != end) {
            refuse(token, fmt::format("expected {}, a whole number below 2^63", what));
        }
        next();
        return value;
    }

    std::vector<std::int64_t> integers() {
        std::vector<std::int64_t> found;
        expect("(");
        do found.push_back(integer("a stride"));
        while (accept(","));
        expect(")");
        return found;
    }

    double signed_number() {
        const double sign = accept("-") ? -1 : 1;
        if (peek().kind != Token::Kind::kNumber) refuse(peek(), "expected a number");
        return sign * next().number;
    }

    Value typed(const Token& start, const Operand& operand) const {
        if (is_number(operand)) {
            refuse(start, "a number that stands alone has no dtype; write const(1.5, f32)");
        }
        return std::get<Value>(operand);
    }

    // ---- Expressions
    // -------------------------------------------------------------------------------------------------

    Operand expression(int least_precedence = 1) {
        const Level level(*this, peek());
        Operand left = unary();
        while (const Infix* infix = infix_at(least_precedence)) {
            const Token symbol = next();
            const Operand right = expression(infix->precedence + 1);
            left = apply(symbol, infix->op, {left, right});
        }
        return left;
    }

    const Infix* infix_at(int least_precedence) const {
        const auto* found = std::find_if(kInfix.begin(), kInfix.end(), [&](const Infix& infix) {
            return at(infix.symbol) && infix.precedence >= least_precedence;
        });
        return found == kInfix.end() ? nullptr : found;
    }

    Operand unary() {
        const Level level(*this, peek());
        const Token symbol = peek();
        if (accept("-")) {
            const Operand operand = unary();
            if (is_number(operand)) return -std::get<double>(operand);
            return apply(symbol, Op::kNeg, {operand});
        }
        if (accept("!")) return apply(symbol, Op::kNot, {unary()});
        return primary();
    }

    Operand primary() {
        if (accept("(")) {
            const Operand inside = expression();
            expect(")");
            return inside;
        }
        const Token token = peek();
        if (token.kind == Token::Kind::kNumber) return next().number;
        word("a value, a number or a call");
        return at("(") ? call(token) : defined(token);
    }

    // A primitive on operands; a bare number takes the dtype of the first operand that has one.
    Operand apply(const Token& token, Op op, const std::vector<Operand>& operands) const {
        const OpInfo& row = info(op);
        if (std::ssize(operands) != row.arity) {
            refuse(token, fmt::format("{} takes {} operands, {} given", row.name, row.arity, operands.size()));
        }
        const std::size_t first = row.types == OpTypes::kSelect ? 1 : 0;
        const auto typed_one = std::find_if(operands.begin() + static_cast<std::ptrdiff_t>(first), operands.end(),
                                            [](const Operand& operand) { return !is_number(operand); });
        if (typed_one == operands.end()) return fold(token, row, operands);
        const Dtype type = std::get<Value>(*typed_one).dtype();
        return build(token, [&]() -> Operand {
            std::vector<NodeId> args;
            for (const Operand& operand : operands) {
                if (!is_number(operand)) {
                    args.push_back(std::get<Value>(operand).id());
                    continue;
                }
                const double number = std::get<double>(operand);
                const Dtype wanted = args.size() < first ? Dtype::kBool : type;
                if (wanted == Dtype::kBool) {
                    fail(ErrorCode::kInvalidGraph, "{}: the number {} where a bool is needed; compare a value",
                         row.name, number);
                }
                args.push_back(graph_.data()->add_const(wanted, number));
            }
            return value(graph_.data()->add_map(op, std::move(args)));
        });
    }

    // Arithmetic on bare numbers gives a bare number, so that 1 / 128 may be written as what it is.
    Operand fold(const Token& token, const OpInfo& row, const std::vector<Operand>& operands) const {
        const bool arithmetic = row.op == Op::kAdd || row.op == Op::kSub || row.op == Op::kMul || row.op == Op::kDiv;
        if (!arithmetic) {
            refuse(token, fmt::format("{} of bare numbers has no dtype; write one as const(1.5, f32)", row.name));
        }
        return row.reference(std::get<double>(operands[0]), std::get<double>(operands[1]), 0);
    }

    // ---- Calls
    // -------------------------------------------------------------------------------------------------------

    Operand call(const Token& name) {
        struct Form {
            std::string_view name;
            Value (Parser::*parse)(const Token& name);
        };
        static constexpr std::array kForms = {
            Form{"const", &Parser::constant}, Form{"cast", &Parser::cast_call}, Form{"iota", &Parser::iota},
            Form{"extent", &Parser::extent},  Form{"index", &Parser::index},    Form{"mean", &Parser::mean_call},
        };
        const Level level(*this, name);
        for (const Form& form : kForms) {
            if (form.name == name.text) return (this->*form.parse)(name);
        }
        if (const auto monoid = find_monoid(name.text)) return reduce(name, *monoid);
        if (const auto op = find_op(name.text)) {
            expect("(");
            std::vector<Operand> operands;
            do operands.push_back(expression());
            while (accept(","));
            expect(")");
            return apply(name, *op, operands);
        }
        if (!is_composite(name.text)) {
            refuse(name, "no primitive, reduction or composite operation has that name; docs/text-form.md lists them");
        }
        const std::vector<Value> results = composite(name);
        return results.front();
    }

    Value value_argument() {
        const Token start = peek();
        return typed(start, expression());
    }

    Value constant(const Token& name) {
        expect("(");
        const double number = signed_number();
        expect(",");
        const Dtype type = dtype();
        expect(")");
        return build(name, [&] { return graph_.constant(type, number); });
    }

    Value cast_call(const Token& name) {
        expect("(");
        const Value operand = value_argument();
        expect(",");
        const Dtype type = dtype();
        expect(")");
        return build(name, [&] { return cast(operand, type); });
    }

    Value iota(const Token& name) {
        expect("(");
        const Axis over = axis();
        const Dtype natural = graph_.data()->axis(over.id).is_row ? Dtype::kI64 : Dtype::kI32;
        const Dtype type = accept(",") ? dtype() : natural;
        expect(")");
        return build(name, [&] { return graph_.iota(over, type); });
    }

    Value extent(const Token& name) {
        expect("(");
        const Axis of = axis();
        expect(",");
        const Dtype type = dtype();
        expect(")");
        return build(name, [&] { return graph_.extent_of(of, type); });
    }

    Value mean_call(const Token& name) {
        expect("(");
        const Value operand = value_argument();
        if (accept(")")) return build(name, [&] { return mean(operand); });
        expect(",");
        const Axis over = reduced_axis(name);
        expect(")");
        return build(name, [&] { return mean(operand, over); });
    }

    Value reduce(const Token& name, Monoid monoid) {
        expect("(");
        const Value operand = value_argument();
        std::vector<AxisId> axes;
        int component = 0;
        while (accept(",")) {
            if (at("component") && at("=", 1)) {
                next();
                next();
                component = static_cast<int>(std::min<std::int64_t>(integer("a component"), 99));
            } else {
                axes.push_back(reduced_axis(name).id);
            }
        }
        expect(")");
        return build(name, [&] {
            GraphData& data = *graph_.data();
            if (axes.empty()) axes = data.column_axes(data.node(operand.id()));
            return value(data.add_reduce(monoid, operand.id(), axes, component));
        });
    }

    Axis reduced_axis(const Token& name) {
        const bool is_value = peek().kind == Token::Kind::kWord && !axes_.contains(peek().text);
        if (is_value && values_.contains(peek().text) && (name.text == "max" || name.text == "min")) {
            refuse(peek(), fmt::format("{0} reduces along an axis; of two values write {0}imum", name.text));
        }
        return axis();
    }

    static bool is_composite(std::string_view name) {
        const auto rows = composites();
        return std::any_of(rows.begin(), rows.end(), [&](const CompositeInfo& row) { return row.name == name; });
    }

    // Operands, then options: rms_norm(x, w, eps=1e-5, casting="llama").
    std::vector<Value> composite(const Token& name) {
        expect("(");
        std::vector<Value> operands;
        OptionMap options;
        do {
            if (peek().kind != Token::Kind::kWord || !at("=", 1)) {
                if (!options.empty()) refuse(peek(), "operands stand before options");
                operands.push_back(value_argument());
                continue;
            }
            const Token option = next();
            next();
            if (!options.emplace(option.text, option_text()).second) refuse(option, "the option is given twice");
        } while (accept(","));
        expect(")");
        std::vector<Value> results = build(name, [&] { return call_composite(name.text, operands, options); });
        if (results.empty()) refuse(name, "the operation has no results");
        return results;
    }

    std::string option_text() {
        const std::string sign = accept("-") ? "-" : "";
        const Token token = peek();
        const bool is_word = token.kind == Token::Kind::kWord || token.kind == Token::Kind::kString;
        if (token.kind != Token::Kind::kNumber && !(is_word && sign.empty())) {
            refuse(token, "expected the option's value: a number, a word or a string");
        }
        next();
        return sign + std::string(token.text);
    }

    // ---- Coordinates
    // -------------------------------------------------------------------------------------------------

    Value index(const Token& name) {
        expect("(");
        const Value source = value_argument();
        std::vector<Coord> coords;
        while (accept(",")) {
            const int outer = std::exchange(coordinate_operators_, 0);
            coords.push_back(coordinate());
            coordinate_operators_ = outer;
        }
        expect(")");
        return build(name, [&] { return rowjit::index(source, std::move(coords)); });
    }

    Coord coordinate() {
        const Level level(*this, peek());
        Coord left = coordinate_term();
        while (at("+") || at("-")) {
            const Token symbol = coordinate_operator();
            const Coord right = coordinate_term();
            left = build(symbol, [&] { return symbol.text == "+" ? left + right : left - right; });
        }
        return left;
    }

    Coord coordinate_term() {
        Coord left = coordinate_factor();
        while (at("*") || at("/") || at("%")) {
            const Token symbol = coordinate_operator();
            const Coord right = coordinate_factor();
            const bool swapped = symbol.text == "*" && right.kind() != Coord::Kind::kConst;
            const Coord& by = swapped ? left : right;
            const Coord& of = swapped ? right : left;
            if (by.kind() != Coord::Kind::kConst) {
                refuse(symbol, "in a coordinate one side must be a constant; compute the rest as a value");
            }
            left = build(symbol, [&] {
                if (symbol.text == "*") return of * by.constant();
                return symbol.text == "/" ? of / by.constant() : of % by.constant();
            });
        }
        return left;
    }

    Token coordinate_operator() {
        if (++coordinate_operators_ > kMaxCoordinateOperators) {
            refuse(peek(), fmt::format("more than {} operators in one coordinate; compute a part as a value",
                                       kMaxCoordinateOperators));
        }
        return next();
    }

    Coord coordinate_factor() {
        const Level level(*this, peek());
        const Token token = peek();
        if (accept("-")) {
            const Coord operand = coordinate_factor();
            return build(token, [&] { return operand * -1; });
        }
        if (accept("(")) {
            Coord inside = coordinate();
            expect(")");
            return inside;
        }
        if (token.kind == Token::Kind::kNumber) {
            const std::int64_t constant = integer("a coordinate's constant");
            return build(token, [&] { return Coord(constant); });
        }
        if (at("@")) return {axis()};
        if (token.kind == Token::Kind::kWord && (at("(", 1) || values_.contains(token.text))) {
            const Value data = typed(token, primary());
            return build(token, [&] { return Coord(data); });
        }
        return {axis()};
    }

    std::string_view source_name_;
    std::vector<Token> tokens_;
    std::size_t position_ = 0;
    int depth_ = 0;
    int coordinate_operators_ = 0;
    Graph graph_;
    std::map<std::string, Value, std::less<>> values_;
    std::map<std::string, Axis, std::less<>> axes_;
};

}  // namespace

Graph Graph::parse(std::string_view text, std::string_view source_name) { return Parser(text, source_name).parse(); }

}  // namespace rowjit
