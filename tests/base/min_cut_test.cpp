// Minimum cuts against all cuts of small graphs, and of graphs whose ways are long or many.
#include "base/min_cut.h"

#include <doctest/doctest.h>

#include <random>

using namespace rowjit;

namespace {

struct Edge {
    std::size_t from;
    std::size_t to;
    double capacity;
};

double cut_by(const std::vector<Edge>& edges, const std::vector<bool>& side) {
    double total = 0;
    for (const Edge& edge : edges) total += side[edge.from] && !side[edge.to] ? edge.capacity : 0;
    return total;
}

std::vector<bool> source_side(std::size_t nodes, const std::vector<Edge>& edges) {
    MinCut cut(nodes);
    for (const Edge& edge : edges) cut.add_edge(edge.from, edge.to, edge.capacity);
    return cut.source_side(0, nodes - 1);
}

}  // namespace

TEST_CASE("no other cut is less, and of equal ones the source has the fewest nodes") {
    constexpr std::size_t kNodes = 8;
    for (unsigned seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        std::vector<Edge> edges;
        for (std::size_t from = 0; from < kNodes; ++from) {
            for (std::size_t to = 0; to < kNodes; ++to) {
                if (from != to && random() % 3 == 0) edges.push_back({from, to, static_cast<double>(random() % 5)});
            }
        }
        const std::vector<bool> found = source_side(kNodes, edges);
        CHECK(found.front());
        CHECK_FALSE(found.back());
        const double least = cut_by(edges, found);
        for (unsigned bits = 0; bits < 1U << (kNodes - 2); ++bits) {
            std::vector<bool> other(kNodes, false);
            other[0] = true;
            for (std::size_t node = 1; node + 1 < kNodes; ++node) other[node] = (bits >> (node - 1) & 1U) != 0;
            CHECK(cut_by(edges, other) >= least);
            if (cut_by(edges, other) > least) continue;
            for (std::size_t node = 0; node < kNodes; ++node) CHECK((other[node] || !found[node]));
        }
    }
}

TEST_CASE("a chain of many nodes is cut at its thinnest, and many ways beside each other at all of theirs") {
    constexpr std::size_t kLong = 20000;
    std::vector<Edge> chain;
    for (std::size_t node = 0; node + 1 < kLong; ++node) chain.push_back({node, node + 1, node == 7000 ? 1.0 : 2.0});
    const std::vector<bool> side = source_side(kLong, chain);
    CHECK(side[7000]);
    CHECK_FALSE(side[7001]);
    constexpr std::size_t kWays = 5000;
    std::vector<Edge> ways;
    for (std::size_t way = 1; way <= kWays; ++way) {
        ways.push_back({0, way, MinCut::kInfinite});
        ways.push_back({way, kWays + 1, way % 2 == 0 ? 0.5 : 3.0});
    }
    constexpr double kMeanCapacity = (0.5 + 3.0) / 2;
    CHECK(cut_by(ways, source_side(kWays + 2, ways)) == kMeanCapacity * static_cast<double>(kWays));
}
