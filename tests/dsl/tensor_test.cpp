#include "dsl/tensor.h"

#include <doctest/doctest.h>

#include "base/dtype.h"
#include "rowjit/graph.h"

using namespace rowjit;

TEST_CASE("a tensor survives a padded, strided buffer and leaves the padding alone") {
    Graph g;
    InputOptions options;
    options.column_strides = {2};
    g.input("x", bf16, {g.rows("n"), 3}, options);
    const Layout layout = input_layout(*g.data(), "x", {{"n", 2}}, {8});
    CHECK(layout.strides == std::vector<std::int64_t>{8, 2});
    CHECK(buffer_elements(layout) == 13);

    const Tensor tensor{bf16, {2, 3}, {1, 2, 3, 4, 5, 6}};
    std::vector<std::uint16_t> buffer(13, 0xFFFF);
    write_tensor(layout, tensor, buffer.data());
    CHECK(buffer[0] == f32_to_bf16(1));
    CHECK(buffer[1] == 0xFFFF);
    CHECK(buffer[12] == f32_to_bf16(6));
    CHECK(read_tensor(layout, buffer.data()).values == tensor.values);
}

TEST_CASE("without row strides the rows follow each other, past declared column strides") {
    Graph g;
    InputOptions options;
    options.column_strides = {1, 4};
    const Axis a = g.columns("a", 4);
    const Value x = g.input("x", f32, {g.rows("n"), g.rows("heads", 2), a, 3}, options);
    g.output("y", x * 2);
    const RowExtents rows = {{"n", 5}};
    CHECK(input_layout(*g.data(), "x", rows).strides == std::vector<std::int64_t>{24, 12, 1, 4});
    CHECK(output_layout(*g.data(), "y", rows).strides == std::vector<std::int64_t>{24, 12, 3, 1});
}

TEST_CASE("no rows need no buffer") {
    Graph g;
    g.input("x", f32, {g.rows("n"), 3});
    const Layout layout = input_layout(*g.data(), "x", {{"n", 0}});
    CHECK(buffer_elements(layout) == 0);
    CHECK(read_tensor(layout, nullptr).values.empty());
}

TEST_CASE("a wrong number of row strides and an unknown name are refused") {
    Graph g;
    g.input("x", f32, {g.rows("n"), 3});
    CHECK_THROWS_WITH_AS(input_layout(*g.data(), "x", {{"n", 1}}, {3, 1}), "x: 2 row strides for 1 row axes", Error);
    CHECK_THROWS_WITH_AS(input_layout(*g.data(), "z", {}), "the graph has no input 'z'", Error);
    CHECK_THROWS_WITH_AS(output_layout(*g.data(), "y", {}), "the graph has no output 'y'", Error);
}
