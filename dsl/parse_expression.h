// The right-hand side of a line of the text form: operators, calls and coordinates, straight to nodes. Which lines
// there are and what they declare is parse.cpp's.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dsl/token_cursor.h"
#include "rowjit/graph.h"

namespace rowjit {

// What the lines so far have declared.
struct TextScope {
    Graph graph;
    std::map<std::string, Value, std::less<>> values;
    std::map<std::string, Axis, std::less<>> axes;
};

// Each begins at the cursor, leaves it behind what it has read, and throws Error with the place of what is wrong.
Value parse_value(TokenCursor& cursor, TextScope& scope);
std::vector<Value> parse_results(TokenCursor& cursor, TextScope& scope, std::size_t count);  // that many, or more
Axis parse_axis(TokenCursor& cursor, TextScope& scope);

// The value of that name.
Value find_value(const TokenCursor& cursor, const TextScope& scope, const Token& name);

}  // namespace rowjit
