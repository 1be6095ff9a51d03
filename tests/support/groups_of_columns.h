// Graphs of groups of columns that lie along one axis, whose numbers each column asks for by its place.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/named_graph.h"

namespace rowjit {

// A norm of each group, as of heads in a flat row; one by the group before, which no group's own columns know; the
// greatest of each place among groups; and codes of a gated activation whose halves are packed, a scale for each group.
inline std::vector<NamedGraph> grouped_columns(std::int64_t groups, std::int64_t width) {
    const std::string axes =
        fmt::format("rows tokens\ncolumns b = {}\ncolumns e = {}\ncolumns d = {}\n", groups, width, groups * width);
    const std::string normed = axes + fmt::format(
                                          "input x: bf16[tokens, d]\nh = cast(x, f32)\n"
                                          "g = index(h, tokens, b * {} + e)\nr = rsqrt(mean(g * g, e) + 1e-6)\n",
                                          width);
    const auto of = [](std::string what, const std::string& text) {
        return NamedGraph{std::move(what), Graph::parse(text)};
    };
    return {
        of("normed groups", normed + fmt::format("output y = cast(h * index(r, tokens, d / {}), bf16)\n", width)),
        of("normed by the group before",
           normed + fmt::format("output y = cast(h * index(r, tokens, (d / {} + {}) % {}), bf16)\n", width, groups - 1,
                                groups)),
        of("the greatest of each place", axes + fmt::format("input x: f32[tokens, d]\ninput w: f32[d]\n"
                                                            "m = max(abs(index(x, tokens, b * {} + e)), b)\n"
                                                            "output y = x / (index(m, tokens, d % {}) + 0.5) * w\n",
                                                            width, width)),
        of("codes of packed halves",
           axes + fmt::format("columns packed = {}\ninput x: bf16[tokens, packed]\n"
                              "g = cast(index(x, tokens, b * {} + e), f32)\n"
                              "u = cast(index(x, tokens, b * {} + e + {}), f32)\n"
                              "y = g / (1 + exp(-g)) * u\ns = maximum(max(abs(y), e) / 448, 1e-12)\n"
                              "output q = cast(y / s, e4m3)\noutput scale = s\n",
                              2 * groups * width, width, width, groups * width)),
    };
}

}  // namespace rowjit
