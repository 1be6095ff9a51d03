// Graphs of maxima and minima over rows, which blocks find in parts as they do sums.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/named_graph.h"

namespace rowjit {

// The log-sum-exp of each row and of each column, whose sums are read off a pair with a maximum over rows; the softmax
// of each column over rows; the range of each column
// beside what each row has; the greatest size in a whole tensor and its codes by that; and the least of each of four
// heads' columns, beside sums of the same.
inline std::vector<NamedGraph> extrema_of_rows(std::int64_t columns) {
    const std::string axes = fmt::format("rows r\ncolumns d = {}\n", columns);
    const auto of = [](std::string what, const std::string& text) {
        return NamedGraph{std::move(what), Graph::parse(text)};
    };
    return {
        of("log-sum-exps of columns", axes + "input x: bf16[r, d]\nz = cast(x, f32) * 3\nm = max(z)\nn = max(z, r)\n"
                                             "output of_rows = m + log(sum(exp(z - m)))\n"
                                             "output of_columns = n + log(sum(exp(z - n), r))\n"),
        of("softmaxes of columns",
           axes + "input x: f32[r, d]\nn = max(x, r)\ne = exp(x - n)\noutput y = e / sum(e, r)\n"),
        of("ranges of columns", axes + "input x: f32[r, d]\noutput range = max(x, r) - min(x, r)\n"
                                       "output y = x / (max(abs(x)) + 0.5)\n"),
        of("codes of a tensor", axes + "input x: bf16[r, d]\nh = cast(x, f32)\n"
                                       "s = maximum(max(max(abs(h)), r) / 448, 1e-12)\n"
                                       "output q = cast(h / s, e4m3)\noutput scale = s\n"),
        of("the least of heads",
           fmt::format("rows r\nrows heads = 4\ncolumns d = {}\ninput x: bf16[r, heads, d]\ninput w: bf16[heads, d]\n"
                       "h = cast(x, f32)\noutput least = min(h, r)\noutput whole = cast(sum(h, r), bf16)\n"
                       "output y = x * w\n",
                       columns)),
    };
}

// A softmax over the steps of each sequence, for each column: rows that no other kernel reads, so that they have no
// parts.
inline Graph softmax_of_sequences(std::int64_t columns) {
    return Graph::parse(
        fmt::format("rows batch\nrows t = 24\ncolumns d = {}\ninput x: bf16[batch, t, d]\n"
                    "z = cast(x, f32)\ne = exp(z - max(z, t))\n"
                    "output y = cast(e / sum(e, t), bf16)\n",
                    columns));
}

}  // namespace rowjit
