#include "base/min_cut.h"

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace rowjit {
namespace {

// Below this an edge counts as full: capacities are costs of order 0.1 to 1000.
constexpr double kEmpty = 1e-9;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

void MinCut::add_edge(std::size_t from, std::size_t to, double capacity) {
    edges_of_[from].push_back(edges_.size());
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
}

bool MinCut::augment(std::size_t source, std::size_t sink) {
    std::vector<std::size_t> reached_by(edges_of_.size(), kNone);
    std::deque<std::size_t> frontier = {source};
    while (!frontier.empty() && reached_by[sink] == kNone) {
        const std::size_t node = frontier.front();
        frontier.pop_front();
        for (const std::size_t edge : edges_of_[node]) {
            const std::size_t to = edges_[edge].to;
            if (edges_[edge].capacity <= kEmpty || reached_by[to] != kNone || to == source) continue;
            reached_by[to] = edge;
            frontier.push_back(to);
        }
    }
    if (reached_by[sink] == kNone) return false;
    double amount = kInfinite;
    for (std::size_t node = sink; node != source; node = edges_[reached_by[node] ^ 1].to) {
        amount = std::min(amount, edges_[reached_by[node]].capacity);
    }
    RJ_CHECK(amount < kInfinite, "min cut: source and sink are joined by edges that cannot be cut");
    for (std::size_t node = sink; node != source; node = edges_[reached_by[node] ^ 1].to) {
        edges_[reached_by[node]].capacity -= amount;
        edges_[reached_by[node] ^ 1].capacity += amount;
    }
    return true;
}

std::vector<bool> MinCut::source_side(std::size_t source, std::size_t sink) {
    while (augment(source, sink)) {
    }
    std::vector<bool> side(edges_of_.size(), false);
    std::deque<std::size_t> frontier = {source};
    side[source] = true;
    while (!frontier.empty()) {
        const std::size_t node = frontier.front();
        frontier.pop_front();
        for (const std::size_t edge : edges_of_[node]) {
            const std::size_t to = edges_[edge].to;
            if (edges_[edge].capacity <= kEmpty || side[to]) continue;
            side[to] = true;
            frontier.push_back(to);
        }
    }
    return side;
}

}  // namespace rowjit
