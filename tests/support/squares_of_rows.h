// Graphs of squared deviations from what the same rows come to, which are found in one reading of them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/named_graph.h"

namespace rowjit {

// A batch norm with its statistics; one of rows that are a thousand deviations from zero; of an image's channels over
// images and pixels; and deviations from a weighted mean, beside their sum alone.
inline std::vector<NamedGraph> squares_of_rows(std::int64_t columns) {
    const std::string axes = fmt::format("rows r\ncolumns d = {}\n", columns);
    const auto of = [](std::string what, const std::string& text) {
        return NamedGraph{std::move(what), Graph::parse(text)};
    };
    const std::string norm =
        "n = extent(r, f32)\nmu = sum(h, r) / n\ne = h - mu\nv = sum(e * e, r) / n\n"
        "output y = cast(e * rsqrt(v + 1e-5), bf16)\noutput mean = mu\noutput var = v\n";
    return {
        of("a batch norm", axes + "input x: bf16[r, d]\nh = cast(x, f32)\n" + norm),
        of("a batch norm far from zero", axes + "input x: f32[r, d]\nh = x + 1000\n" + norm),
        of("a norm of channels",
           fmt::format("rows images\nrows pixels = 6\ncolumns d = {}\ninput x: bf16[images, pixels, d]\n"
                       "h = cast(x, f32)\nn = extent(images, f32) * 6\ns = sum(h, images, pixels) / n\n"
                       "e = s - h\noutput v = sum(e * e, images, pixels) / n\noutput y = cast(e, bf16)\n",
                       columns)),
        of("deviations from a weighted mean",
           axes + "input x: f32[r, d]\ninput w: f32[r]\na = abs(w)\nmu = sum(x * a, r) / sum(a, r)\ne = x - mu\n"
                  "output squares = sum(e * e, r)\noutput y = e * 2\n"),
    };
}

}  // namespace rowjit
