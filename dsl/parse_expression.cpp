#include "dsl/parse_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/fail.h"
#include "dsl/graph.h"
#include "dsl/library/registry.h"
#include "dsl/text.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

constexpr int kMaxCoordinateOperators = 64;  // in one coordinate; what handles coordinates recurs on their operators

constexpr std::int64_t kMostSteps = std::numeric_limits<int>::max();

// A value, or a number that has no dtype yet.
using Operand = std::variant<Value, double>;

bool is_number(const Operand& operand) { return std::holds_alternative<double>(operand); }

// What other libraries have a name for, and how it is written here.
struct Spelling {
    std::string_view name;
    std::string_view written;
};
constexpr std::array kSpellings = {
    Spelling{"clamp", "minimum(maximum(x, low), high)"},
    Spelling{"clip", "minimum(maximum(x, low), high)"},
    Spelling{"where", "select(condition, x, y)"},
    Spelling{"sigmoid", "1 / (1 + exp(-x))"},
    Spelling{"softplus", "maximum(x, 0) + log1p(exp(-abs(x)))"},
    Spelling{"square", "x * x"},
    Spelling{"amax", "max(x)"},
    Spelling{"amin", "min(x)"},
};

// Recursive descent.
class ExpressionParser {
  public:
    ExpressionParser(TokenCursor& cursor, TextScope& scope) : cursor_(cursor), scope_(scope) {}

    Value value() {
        const Token start = cursor_.peek();
        return typed(start, expression());
    }

    // An expression of `count` results; several come from a composite operation alone.
    std::vector<Value> results(std::size_t count) {
        const Token start = cursor_.peek();
        if (count == 1) return {value()};
        if (!is_composite(start.text) || !cursor_.at("(", 1)) {
            cursor_.refuse(start, "several names are for the results of one operation: sum, y = add_rms_norm(x, r, w)");
        }
        cursor_.next();
        return composite(start);
    }

    Axis axis() {
        cursor_.accept("@");
        const Token token = cursor_.peek();
        if (token.kind == Token::Kind::kNumber) {
            const std::int64_t extent = cursor_.integer("an extent");
            return cursor_.build(token, [&] { return scope_.graph.columns(extent); });
        }
        const Token name = cursor_.word("an axis: a declared name or a column extent");
        const auto found = scope_.axes.find(name.text);
        if (found == scope_.axes.end()) {
            cursor_.refuse(name,
                           fmt::format("no axis of that name is declared above; write 'rows {0}' or 'columns {0} = …'",
                                       name.text));
        }
        return found->second;
    }

  private:
    Value node_value(NodeId id) const { return {scope_.graph.data(), id}; }

    Value typed(const Token& start, const Operand& operand) const {
        if (is_number(operand)) {
            cursor_.refuse(start, "a number that stands alone has no dtype; write const(1.5, f32)");
        }
        return std::get<Value>(operand);
    }

    Operand expression(int least_precedence = 1) {
        const TokenCursor::Level level(cursor_, cursor_.peek());
        Operand left = unary();
        while (const Infix* infix = infix_at(least_precedence)) {
            const Token symbol = cursor_.next();
            const Operand right = expression(infix->precedence + 1);
            left = apply(symbol, infix->op, {left, right});
        }
        return left;
    }

    const Infix* infix_at(int least_precedence) const {
        const auto* found = std::find_if(kInfix.begin(), kInfix.end(), [&](const Infix& infix) {
            return cursor_.at(infix.symbol) && infix.precedence >= least_precedence;
        });
        return found == kInfix.end() ? nullptr : found;
    }

    Operand unary() {
        const TokenCursor::Level level(cursor_, cursor_.peek());
        const Token symbol = cursor_.peek();
        if (cursor_.accept("-")) {
            const Operand operand = unary();
            if (is_number(operand)) return -std::get<double>(operand);
            return apply(symbol, Op::kNeg, {operand});
        }
        if (cursor_.accept("!")) return apply(symbol, Op::kNot, {unary()});
        return primary();
    }

    Operand primary() {
        if (cursor_.accept("(")) {
            const Operand inside = expression();
            cursor_.expect(")");
            return inside;
        }
        const Token token = cursor_.peek();
        if (token.kind == Token::Kind::kNumber) return cursor_.next().number;
        cursor_.word("a value, a number or a call");
        if (cursor_.at("[")) {
            cursor_.refuse(
                cursor_.peek(),
                fmt::format("an input is read at coordinates by index({}, …), one for each axis", token.text));
        }
        return cursor_.at("(") ? call(token) : find_value(cursor_, scope_, token);
    }

    // A primitive on operands; a bare number takes the dtype of the first operand that has one.
    Operand apply(const Token& token, Op op, const std::vector<Operand>& operands) const {
        const OpInfo& row = info(op);
        if (std::ssize(operands) != row.arity) {
            cursor_.refuse(token, fmt::format("{} takes {} operands, {} given", row.name, row.arity, operands.size()));
        }
        const std::size_t first = row.types == OpTypes::kSelect ? 1 : 0;
        const auto typed_one = std::find_if(operands.begin() + static_cast<std::ptrdiff_t>(first), operands.end(),
                                            [](const Operand& operand) { return !is_number(operand); });
        if (typed_one == operands.end()) return fold(token, row, operands);
        const Dtype type = std::get<Value>(*typed_one).dtype();
        return cursor_.build(token, [&]() -> Operand {
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
                args.push_back(scope_.graph.data()->add_const(wanted, number));
            }
            return node_value(scope_.graph.data()->add_map(op, std::move(args)));
        });
    }

    // Arithmetic on bare numbers gives a bare number, so that 1 / 128 may be written as what it is.
    Operand fold(const Token& token, const OpInfo& row, const std::vector<Operand>& operands) const {
        const bool arithmetic = row.op == Op::kAdd || row.op == Op::kSub || row.op == Op::kMul || row.op == Op::kDiv;
        if (!arithmetic) {
            cursor_.refuse(token,
                           fmt::format("{} of bare numbers has no dtype; write one as const(1.5, f32)", row.name));
        }
        return row.reference(std::get<double>(operands[0]), std::get<double>(operands[1]), 0);
    }

    // ---- calls ---------------------------------------------------------------------------------------------------

    Operand call(const Token& name) {
        struct Form {
            std::string_view name;
            Value (ExpressionParser::*parse)(const Token& name);
        };
        static constexpr std::array kForms = {
            Form{"const", &ExpressionParser::constant}, Form{"cast", &ExpressionParser::cast_call},
            Form{"iota", &ExpressionParser::iota},      Form{"extent", &ExpressionParser::extent},
            Form{"index", &ExpressionParser::index},    Form{"mean", &ExpressionParser::mean_call},
            Form{"state", &ExpressionParser::state},    Form{"fix", &ExpressionParser::fix},
            Form{"search", &ExpressionParser::search},  Form{"matmul", &ExpressionParser::matmul_call},
            Form{"order", &ExpressionParser::order},
        };
        const TokenCursor::Level level(cursor_, name);
        for (const Form& form : kForms) {
            if (form.name == name.text) return (this->*form.parse)(name);
        }
        if (const auto monoid = find_monoid(name.text)) return reduce(name, *monoid);
        if (const auto op = find_op(name.text)) {
            cursor_.expect("(");
            std::vector<Operand> operands;
            do operands.push_back(expression());
            while (cursor_.accept(","));
            cursor_.expect(")");
            return apply(name, *op, operands);
        }
        if (!is_composite(name.text)) {
            const auto* known = std::ranges::find(kSpellings, std::string_view(name.text), &Spelling::name);
            cursor_.refuse(name, fmt::format("no primitive, reduction or composite operation has that name; {}",
                                             known == kSpellings.end() ? "docs/text-form.md lists them"
                                                                       : fmt::format("write {}", known->written)));
        }
        const std::vector<Value> results = composite(name);
        return results.front();
    }

    Value constant(const Token& name) {
        cursor_.expect("(");
        const double number = cursor_.signed_number();
        cursor_.expect(",");
        const Dtype type = cursor_.dtype();
        cursor_.expect(")");
        return cursor_.build(name, [&] { return scope_.graph.constant(type, number); });
    }

    Value cast_call(const Token& name) {
        cursor_.expect("(");
        const Value operand = value();
        cursor_.expect(",");
        const Dtype type = cursor_.dtype();
        cursor_.expect(")");
        return cursor_.build(name, [&] { return cast(operand, type); });
    }

    Value iota(const Token& name) {
        cursor_.expect("(");
        const Axis over = axis();
        const Dtype natural = scope_.graph.data()->axis(over.id).is_row ? Dtype::kI64 : Dtype::kI32;
        const Dtype type = cursor_.accept(",") ? cursor_.dtype() : natural;
        cursor_.expect(")");
        return cursor_.build(name, [&] { return scope_.graph.iota(over, type); });
    }

    Value extent(const Token& name) {
        cursor_.expect("(");
        const Axis of = axis();
        cursor_.expect(",");
        const Dtype type = cursor_.dtype();
        cursor_.expect(")");
        return cursor_.build(name, [&] { return scope_.graph.extent_of(of, type); });
    }

    Value search(const Token& name) {
        cursor_.expect("(");
        const Value sorted = value();
        cursor_.expect(",");
        const Value key = value();
        cursor_.expect(")");
        return cursor_.build(name, [&] { return rowjit::search(sorted, key); });
    }

    Value order(const Token& name) {
        cursor_.expect("(");
        const Value ids = value();
        cursor_.expect(",");
        const Axis places = axis();
        cursor_.expect(",");
        const Axis rows = axis();
        cursor_.expect(")");
        return cursor_.build(name, [&] { return rowjit::order(ids, places, rows); });
    }

    Value matmul_call(const Token& name) {
        cursor_.expect("(");
        const Value left = value();
        cursor_.expect(",");
        const Value right = value();
        std::vector<Axis> contracted;
        Dtype type = left.dtype();
        while (cursor_.accept(",")) {
            if (cursor_.at("dtype") && cursor_.at("=", 1)) {
                cursor_.next();
                cursor_.next();
                type = cursor_.dtype();
            } else {
                contracted.push_back(axis());
            }
        }
        cursor_.expect(")");
        return cursor_.build(name, [&] { return matmul(left, right, contracted, type); });
    }

    Value mean_call(const Token& name) {
        cursor_.expect("(");
        const Value operand = value();
        if (cursor_.accept(")")) return cursor_.build(name, [&] { return mean(operand); });
        cursor_.expect(",");
        const Axis over = reduced_axis(name);
        cursor_.expect(")");
        return cursor_.build(name, [&] { return mean(operand, over); });
    }

    Value state(const Token& name) {
        cursor_.expect("(");
        const Value start = value();
        cursor_.expect(")");
        return cursor_.build(name, [&] { return node_value(scope_.graph.data()->add_state(start.id())); });
    }

    Value fix(const Token& name) {
        cursor_.expect("(");
        const Value state = value();
        cursor_.expect(",");
        const Value next = value();
        cursor_.expect(",");
        if (!cursor_.accept("steps")) {
            cursor_.refuse(cursor_.peek(), "expected 'steps=' and the most steps there may be");
        }
        cursor_.expect("=");
        const auto steps = static_cast<int>(std::min(cursor_.integer("a number of steps"), kMostSteps));
        cursor_.expect(")");
        return cursor_.build(name,
                             [&] { return node_value(scope_.graph.data()->add_fix(state.id(), next.id(), steps)); });
    }

    Value reduce(const Token& name, Monoid monoid) {
        cursor_.expect("(");
        const Value operand = value();
        std::vector<AxisId> axes;
        int component = 0;
        std::optional<Axis> into;
        std::optional<Value> offsets;
        const auto keyword = [&](std::string_view word) {
            if (!cursor_.at(word) || !cursor_.at("=", 1)) return false;
            cursor_.next();
            cursor_.next();
            return true;
        };
        while (cursor_.accept(",")) {
            if (keyword("component")) {
                component = static_cast<int>(std::min<std::int64_t>(cursor_.integer("a component"), 99));
            } else if (keyword("into")) {
                into = axis();
            } else if (keyword("offsets")) {
                offsets = value();
            } else {
                axes.push_back(reduced_axis(name).id);
            }
        }
        cursor_.expect(")");
        if (into.has_value() != offsets.has_value() || (into && axes.size() != 1)) {
            cursor_.refuse(name, "segments need one axis, into= and offsets=");
        }
        return cursor_.build(name, [&] {
            GraphData& data = *scope_.graph.data();
            if (into) {
                return node_value(data.add_segment_reduce(monoid, operand.id(), axes[0], offsets->id(), into->id));
            }
            if (axes.empty()) axes = data.column_axes(data.node(operand.id()));
            return node_value(data.add_reduce(monoid, operand.id(), axes, component));
        });
    }

    Axis reduced_axis(const Token& name) {
        const bool is_value = cursor_.peek().kind == Token::Kind::kWord && !scope_.axes.contains(cursor_.peek().text);
        if (is_value && scope_.values.contains(cursor_.peek().text) && (name.text == "max" || name.text == "min")) {
            cursor_.refuse(cursor_.peek(),
                           fmt::format("{0} reduces along an axis; of two values write {0}imum", name.text));
        }
        return axis();
    }

    static bool is_composite(std::string_view name) {
        const auto rows = composites();
        return std::any_of(rows.begin(), rows.end(), [&](const CompositeInfo& row) { return row.name == name; });
    }

    // Operands, then options: rms_norm(x, w, eps=1e-5, casting="llama").
    std::vector<Value> composite(const Token& name) {
        cursor_.expect("(");
        std::vector<Value> operands;
        OptionMap options;
        do {
            if (cursor_.peek().kind != Token::Kind::kWord || !cursor_.at("=", 1)) {
                if (!options.empty()) cursor_.refuse(cursor_.peek(), "operands stand before options");
                operands.push_back(value());
                continue;
            }
            const Token option = cursor_.next();
            cursor_.next();
            if (!options.emplace(option.text, option_text()).second)
                cursor_.refuse(option, "the option is given twice");
        } while (cursor_.accept(","));
        cursor_.expect(")");
        std::vector<Value> results = cursor_.build(name, [&] { return call_composite(name.text, operands, options); });
        if (results.empty()) cursor_.refuse(name, "the operation has no results");
        return results;
    }

    std::string option_text() {
        const std::string sign = cursor_.accept("-") ? "-" : "";
        const Token token = cursor_.peek();
        const bool is_word = token.kind == Token::Kind::kWord || token.kind == Token::Kind::kString;
        if (token.kind != Token::Kind::kNumber && !(is_word && sign.empty())) {
            cursor_.refuse(token, "expected the option's value: a number, a word or a string");
        }
        cursor_.next();
        return sign + std::string(token.text);
    }

    // ---- coordinates ---------------------------------------------------------------------------------------------

    Value index(const Token& name) {
        cursor_.expect("(");
        const Value source = value();
        std::vector<Coord> coords;
        while (cursor_.accept(",")) {
            const int outer = std::exchange(coordinate_operators_, 0);
            coords.push_back(coordinate());
            coordinate_operators_ = outer;
        }
        cursor_.expect(")");
        return cursor_.build(name, [&] { return rowjit::index(source, std::move(coords)); });
    }

    Coord coordinate() {
        const TokenCursor::Level level(cursor_, cursor_.peek());
        Coord left = coordinate_term();
        while (cursor_.at("+") || cursor_.at("-")) {
            const Token symbol = coordinate_operator();
            const Coord right = coordinate_term();
            left = cursor_.build(symbol, [&] { return symbol.text == "+" ? left + right : left - right; });
        }
        return left;
    }

    Coord coordinate_term() {
        Coord left = coordinate_factor();
        while (cursor_.at("*") || cursor_.at("/") || cursor_.at("%")) {
            const Token symbol = coordinate_operator();
            const Coord right = coordinate_factor();
            const bool swapped = symbol.text == "*" && right.kind() != Coord::Kind::kConst;
            const Coord& by = swapped ? left : right;
            const Coord& of = swapped ? right : left;
            if (by.kind() != Coord::Kind::kConst) {
                cursor_.refuse(symbol, "in a coordinate one side must be a constant; compute the rest as a value");
            }
            left = cursor_.build(symbol, [&] {
                if (symbol.text == "*") return of * by.constant();
                return symbol.text == "/" ? of / by.constant() : of % by.constant();
            });
        }
        return left;
    }

    Token coordinate_operator() {
        if (++coordinate_operators_ > kMaxCoordinateOperators) {
            cursor_.refuse(cursor_.peek(),
                           fmt::format("more than {} operators in one coordinate; compute a part as a value",
                                       kMaxCoordinateOperators));
        }
        return cursor_.next();
    }

    Coord coordinate_factor() {
        const TokenCursor::Level level(cursor_, cursor_.peek());
        const Token token = cursor_.peek();
        if (cursor_.accept("-")) {
            const Coord operand = coordinate_factor();
            return cursor_.build(token, [&] { return operand * -1; });
        }
        if (cursor_.accept("(")) {
            Coord inside = coordinate();
            cursor_.expect(")");
            return inside;
        }
        if (token.kind == Token::Kind::kNumber) {
            const std::int64_t constant = cursor_.integer("a coordinate's constant");
            return cursor_.build(token, [&] { return Coord(constant); });
        }
        if (cursor_.at("@")) return {axis()};
        if (token.kind == Token::Kind::kWord && (cursor_.at("(", 1) || scope_.values.contains(token.text))) {
            const Value data = typed(token, primary());
            return cursor_.build(token, [&] { return Coord(data); });
        }
        return {axis()};
    }

    TokenCursor& cursor_;
    TextScope& scope_;
    int coordinate_operators_ = 0;
};

}  // namespace

Value parse_value(TokenCursor& cursor, TextScope& scope) { return ExpressionParser(cursor, scope).value(); }

std::vector<Value> parse_results(TokenCursor& cursor, TextScope& scope, std::size_t count) {
    return ExpressionParser(cursor, scope).results(count);
}

Axis parse_axis(TokenCursor& cursor, TextScope& scope) { return ExpressionParser(cursor, scope).axis(); }

Value find_value(const TokenCursor& cursor, const TextScope& scope, const Token& name) {
    const auto found = scope.values.find(name.text);
    if (found == scope.values.end()) cursor.refuse(name, "no value of that name is defined above");
    return found->second;
}

}  // namespace rowjit
