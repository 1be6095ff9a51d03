#include "base/min_cut.h"

#include <algorithm>

#include "base/check.h"

namespace rowjit {
namespace {

// Below this an edge counts as full: capacities are costs of order 0.1 to 1000.
constexpr double kEmpty = 1e-9;

}  // namespace

void MinCut::add_edge(std::size_t from, std::size_t to, double capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
}

std::vector<std::size_t> MinCut::distances(std::size_t source) const {
    std::vector<std::size_t> distance(edges_of_.size(), kFar);
    std::vector<std::size_t> reached = {source};
    distance[source] = 0;
    for (std::size_t next = 0; next < reached.size(); ++next) {
        const std::size_t node = reached[next];
        for (const std::size_t edge : edges_of_[node]) {
            const std::size_t to = edges_[edge].to;
            if (edges_[edge].capacity <= kEmpty || distance[to] != kFar) continue;
            distance[to] = distance[node] + 1;
            reached.push_back(to);
        }
    }
    return distance;
}

// Fills the ways along which the distance grows by one an edge, until none has room. An edge that leads nowhere is not
// tried again. Walked without recursion: a graph may be a chain of thousands.
void MinCut::fill_shortest(std::size_t source, std::size_t sink, const std::vector<std::size_t>& distance) {
    std::vector<std::size_t> tried(edges_of_.size(), 0);  // by node: how many of its edges
    std::vector<std::size_t> way;                         // edges from the source on
    while (true) {
        const std::size_t node = way.empty() ? source : edges_[way.back()].to;
        if (node == sink) {
            double amount = kInfinite;
            for (const std::size_t edge : way) amount = std::min(amount, edges_[edge].capacity);
            RJ_CHECK(amount < kInfinite, "min cut: source and sink are joined by edges that cannot be cut");
            for (const std::size_t edge : way) {
                edges_[edge].capacity -= amount;
                edges_[edge ^ 1].capacity += amount;
            }
            // On from before the first edge that is full now.
            const auto full =
                std::find_if(way.begin(), way.end(), [&](std::size_t edge) { return edges_[edge].capacity <= kEmpty; });
            way.erase(full, way.end());
            continue;
        }
        if (tried[node] == edges_of_[node].size()) {
            if (way.empty()) return;
            way.pop_back();
            ++tried[way.empty() ? source : edges_[way.back()].to];
            continue;
        }
        const std::size_t edge = edges_of_[node][tried[node]];
        const std::size_t to = edges_[edge].to;
        if (edges_[edge].capacity > kEmpty && distance[to] == distance[node] + 1) {
            way.push_back(edge);
        } else {
            ++tried[node];
        }
    }
}

std::vector<bool> MinCut::source_side(std::size_t source, std::size_t sink) {
    std::vector<std::size_t> distance = distances(source);
    while (distance[sink] != kFar) {
        fill_shortest(source, sink, distance);
        distance = distances(source);
    }
    std::vector<bool> side(edges_of_.size(), false);
    for (std::size_t node = 0; node < side.size(); ++node) side[node] = distance[node] != kFar;
    return side;
}

}  // namespace rowjit
