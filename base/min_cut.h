// Minimum s–t cut of a small directed graph (tens to hundreds of nodes), by shortest augmenting paths. What to keep on
// chip between loops, and later what to save for the backward, are both cuts.
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

    bool augment(std::size_t source, std::size_t sink);

    std::vector<Edge> edges_;
    std::vector<std::vector<std::size_t>> edges_of_;
};

}  // namespace rowjit
