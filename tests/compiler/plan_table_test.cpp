// docs/plans.md: what the planner makes of every operation and of its derived backward, beside the least possible. The
// page is written here, so a plan that gets better or worse shows as a changed line.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <string>

#include "compiler/compile.h"
#include "dsl/library/registry.h"
#include "dsl/traffic.h"
#include "rowjit/gradient.h"

using namespace rowjit;

namespace {

constexpr std::int64_t kTokens = 8192;

// A model's width, by what the op's columns are.
std::int64_t width_of(const CompositeInfo& op) {
    if (op.columns == "head width") return 128;
    return op.columns == "vocabulary" ? 128256 : 4096;
}

constexpr std::string_view kHead =
    R"(# Plans beside the least possible

How many kernels the planner makes of each operation and of its derived backward, and what they move: with default options,
bf16, 8192 rows, for an H200. Operations whose matrix products a library computes are left out.

- `planned` counts, for each kernel, every tensor that it reads and every tensor that it writes, once. That includes what one
  kernel leaves for another and, for a sum over rows, 256 parts.
- `least` counts each input of the graph and each output, once.

`rowjit explain --op NAME [--backward]` prints the plan behind a line. This page is made by the test "docs/plans.md is what
the planner makes".

| operation | | kernels | planned MB | least MB | planned / least |
|---|---|---|---|---|---|
)";

std::string line(std::string_view op, std::string_view pass, const Graph& graph) {
    const Plan plan = plan_graph(*graph.data(), find_target("sm_90a"));
    if (!plan.products.empty()) return "";
    double bytes = 0;
    for (const Group& group : plan.groups) bytes += group_bytes(*group.graph, kTokens);
    const auto least = static_cast<double>(least_bytes(*graph.data(), all_rows(*graph.data(), kTokens)));
    return fmt::format("| {} | {} | {} | {:.2f} | {:.2f} | {:.3f} |\n", op, pass, plan.groups.size(), bytes / 1e6,
                       least / 1e6, bytes / least);
}

std::string page() {
    std::string text(kHead);
    for (const CompositeInfo& op : composites()) {
        const Graph graph = make_graph(op.name, {width_of(op), bf16, {}});
        text += line(op.name, "forward", graph);
        const std::vector<std::string> trained = trained_inputs(op.name, graph);
        if (!trained.empty()) text += line(op.name, "backward", differentiate(graph, trained).backward);
    }
    return text;
}

}  // namespace

// What the page should be is left beside the build, to be copied over it.
TEST_CASE("docs/plans.md is what the planner makes") {
    std::ifstream file(ROWJIT_SOURCE_DIR "/docs/plans.md");
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::string made = page();
    if (text != made) std::ofstream(ROWJIT_BINARY_DIR "/plans.md") << made;
    CHECK_MESSAGE(text == made, "copy " ROWJIT_BINARY_DIR "/plans.md over docs/plans.md");
}
