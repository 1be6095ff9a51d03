// Reading the text form (docs/text-form.md): its lines, straight to nodes. Whatever is wrong with a text is an Error
// that opens with its place; the graph's own refusals are given theirs. What stands behind '=' is parse_expression's.
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "dsl/graph.h"
#include "dsl/parse_expression.h"
#include "dsl/text.h"
#include "dsl/token_cursor.h"

namespace rowjit {
namespace {

class Parser {
  public:
    Parser(std::string_view text, std::string_view source_name) : cursor_(text, source_name) {}

    Graph parse() {
        while (cursor_.peek().kind != Token::Kind::kEnd) {
            if (cursor_.peek().kind != Token::Kind::kNewline) statement();
            if (cursor_.peek().kind != Token::Kind::kNewline)
                cursor_.refuse(cursor_.peek(), "expected the end of the line");
            cursor_.next();
        }
        return scope_.graph;
    }

  private:
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
        if (cursor_.at("=", 1) || cursor_.at(",", 1)) return assignment();
        for (const Statement& row : kStatements) {
            if (!cursor_.at(row.keyword)) continue;
            cursor_.next();
            return (this->*row.parse)();
        }
        cursor_.refuse(cursor_.peek(),
                       "a line is 'name = expression', or begins with rows, columns, input, scalar or output");
    }

    void rows() {
        const Token name = cursor_.word("the axis's name: rows tokens");
        const bool given = cursor_.accept("=");
        if (given && cursor_.peek().kind == Token::Kind::kWord) {
            std::vector<AxisId> like;
            do like.push_back(parse_axis(cursor_, scope_).id);
            while (cursor_.accept("*"));
            const std::int64_t more = cursor_.accept("+") ? cursor_.integer("how many positions more") : 0;
            return declare_axis(name, [&] { return scope_.graph.data()->add_row_axis_like(name.text, like, more); });
        }
        const std::int64_t extent = given ? cursor_.integer("the axis's extent") : kRuntimeExtent;
        declare_axis(name, [&] { return scope_.graph.data()->add_row_axis(name.text, extent); });
    }

    void columns() {
        const Token name = cursor_.word("the axis's name: columns d = 128");
        cursor_.expect("=");
        const std::int64_t extent = cursor_.integer("the axis's extent");
        declare_axis(name, [&] { return scope_.graph.columns(name.text, extent).id; });
    }

    template <class Add>
    void declare_axis(const Token& name, Add add) {
        if (scope_.axes.contains(name.text))
            cursor_.refuse(name, "an axis of that name is declared above; choose another");
        scope_.axes[std::string(name.text)] = Axis{cursor_.build(name, add)};
    }

    void input() {
        const Token name = cursor_.word("the input's name");
        cursor_.expect(":");
        const Dtype type = cursor_.dtype();
        std::vector<AxisId> dims;
        if (cursor_.accept("[") && !cursor_.accept("]")) {
            do dims.push_back(parse_axis(cursor_, scope_).id);
            while (cursor_.accept(","));
            cursor_.expect("]");
        }
        std::vector<std::int64_t> strides;
        if (cursor_.accept("strides")) strides = cursor_.integers();
        define(name, cursor_.build(
                         name, [&] { return value(scope_.graph.data()->add_input(name.text, type, dims, strides)); }));
    }

    void scalar() {
        const Token name = cursor_.word("the scalar's name");
        cursor_.expect(":");
        const Dtype type = cursor_.dtype();
        if (!cursor_.accept("=")) cursor_.refuse(cursor_.peek(), "expected '=' and the scalar's default");
        const double default_value = cursor_.signed_number();
        define(name, cursor_.build(
                         name, [&] { return value(scope_.graph.data()->add_scalar(name.text, type, default_value)); }));
    }

    void assignment() {
        std::vector<Token> names;
        do names.push_back(cursor_.word("a name"));
        while (cursor_.accept(","));
        cursor_.expect("=");
        const Token start = cursor_.peek();
        std::vector<Value> results = parse_results(cursor_, scope_, names.size());
        if (results.size() < names.size()) {
            cursor_.refuse(start, fmt::format("{} names for {} results", names.size(), results.size()));
        }
        for (std::size_t i = 0; i < names.size(); ++i) {
            define(names[i], results[i]);
            if (is_numbered(names[i].text)) continue;
            cursor_.build(names[i], [&] { return results[i].named(names[i].text); });
        }
    }

    void output() {
        const Token name = cursor_.word("the output's name");
        const Value result = cursor_.accept("=") ? parse_value(cursor_, scope_) : find_value(cursor_, scope_, name);
        OutputOptions options;
        while (true) {
            if (cursor_.accept("alias")) {
                cursor_.expect("(");
                options.alias = cursor_.word("the name of an input").text;
                cursor_.expect(")");
            } else if (cursor_.accept("accumulate")) {
                options.accumulate = true;
            } else if (cursor_.accept("strides")) {
                options.column_strides = cursor_.integers();
            } else {
                break;
            }
        }
        cursor_.build(name, [&] {
            scope_.graph.output(name.text, result, options);
            return 0;
        });
    }

    Value value(NodeId id) const { return {scope_.graph.data(), id}; }

    void define(const Token& name, const Value& value) {
        if (!scope_.values.emplace(name.text, value).second) {
            cursor_.refuse(name, "a value of that name is defined above; choose another");
        }
    }

    TokenCursor cursor_;
    TextScope scope_;
};

}  // namespace

Graph Graph::parse(std::string_view text, std::string_view source_name) { return Parser(text, source_name).parse(); }

}  // namespace rowjit
