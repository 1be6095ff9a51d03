// Minimum s–t cut of a directed graph of tens to thousands of nodes, by blocking flows over shortest paths (Dinic).
// What to keep on chip between loops, and later what to save for the backward, are both cuts.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace rowjit {

class MinCut {
  public:
    static constexpr double kInfinite = std::numeric_limits<double>::infinity();

    explicit MinCut(std::size_t nodes) : edges_of_(nodes) {}

    void add_edge(std::size_t from, std::size_t to, double capacity);

    // For each node, whether it lies on the source's side of a minimum cut (the one nearest the source).
    std::vector<bool> source_side(std::size_t source, std::size_t sink);

  private:
    struct Edge {
        std::size_t to;
        double capacity;  // what is left of it; the reverse edge is the neighbouring index
    };

    // By node: the edges on the shortest way from the source that has room; kFar where there is none.
    static constexpr std::size_t kFar = static_cast<std::size_t>(-1);
    std::vector<std::size_t> distances(std::size_t source) const;
    void fill_shortest(std::size_t source, std::size_t sink, const std::vector<std::size_t>& distance);

    std::vector<Edge> edges_;
    std::vector<std::vector<std::size_t>> edges_of_;
};

}  // namespace rowjit
