// A merge sort whose passes are graphs. The first pass makes runs of B places: where an id goes is how many of its run
// come before it, and which came to a place is the one that went there, each compared with all of the run. Before a
// later pass the places are runs, each in order; it merges R that stand side by side, a family. Where an id goes is its
// place in its own run and, of every sibling run, the number of ids that come before it, which a binary search in that
// run finds. Which id came to a place, a search in each run for the place that its ids went to finds.
//
// One search serves all runs: an id is looked up as run·(rows + 2) + id, and these numbers increase along all places.
// Where there are fewer ids than a pass merges, those of runs that there are not are beyond all others, which a search
// sees at once.
#include "dsl/stable_order.h"

#include <fmt/format.h>

#include "dsl/graph.h"
#include "rowjit/coord.h"

namespace rowjit {
namespace {

// Runs that a pass merges. Fewer make more kernels, more make more searches for each id: of 32,768 ids 4,000 steps of a
// search, where counting those before an id takes 65,536 comparisons. What the ids of few runs take is the launch of a
// kernel, what many take is searching: the sort of 2048 ids takes an H200 7 us more in two passes of eight runs than in
// one of sixteen, that of 65,536 takes 120 us less in three of eight than in three of sixteen.
constexpr std::int64_t kFewIds = 2048;
constexpr std::int64_t runs_merged(std::int64_t run) { return run < kFewIds ? 16 : 8; }
// Places of a run that comparisons sort, of which each id has as many; up to 16,384 ids are then merged twice.
constexpr std::int64_t kFirstRun = 128;
constexpr std::int64_t kMostIds = std::int64_t{1} << 32;  // what they gather is more than any memory holds

class Merger {
  public:
    Merger(const Value& ids, Axis places, Axis rows)
        : graph_(ids.graph()),
          places_(places),
          neighbours_(graph_.columns("neighbours", kFirstRun)),
          place_(graph_.iota(places, i64)),
          neighbour_(graph_.iota(neighbours_, i64)),
          count_(graph_.extent_of(places, i64)),
          zero_(graph_.constant(i64, 0)),
          kinds_(graph_.extent_of(rows, i64) + 2.0),
          order_(place_) {
        // 0 for what is before the rows and kinds − 1 for what is behind them.
        const Value id = cast(index(ids, {Coord(places)}), i64);
        keys_ = minimum(maximum(id, graph_.constant(i64, -1)), kinds_ - 2.0) + 1.0;
        sort_runs();
    }

    // Runs of `run` become so many times as long, which is returned. Where there is one run, all stays as it is: said
    // by the extent alone, so that a launch does without the kernels of such a pass (compiler/needless).
    std::int64_t merge(std::int64_t run) {
        const std::int64_t runs = runs_merged(run);
        const Axis siblings = graph_.columns(fmt::format("runs_{}", runs), runs);
        const double length = static_cast<double>(run);
        const double family_length = static_cast<double>(run * runs);
        const Value family = run_of_place(run * runs);
        const Value first_run = family * static_cast<double>(runs);
        const Value other = first_run + graph_.iota(siblings, i64);  // a run of the family

        // Of each id, run·family_length + its place in the family: increases along the places too.
        const Value own = run_of_place(run);
        const Value kind = keys_ - own * kinds_;
        const Value after = select(other > own, graph_.constant(i64, 1), zero_);  // equal ones of these come later
        const Value wanted_key = select(other == own, count_ * kinds_, other * kinds_ + kind - after);
        const Value before = search(keys_, wanted_key) + 1.0 - minimum(other * length, count_);
        const Value here = own * family_length + (place_ - own * length);
        const Value targets = sum(select(other == own, here, before), siblings).named("targets");

        const Value wanted = other * family_length + (place_ - family * family_length);
        const Value found = search(targets, wanted);
        const auto at_found = [&](const Value& numbers) { return index(numbers, {Coord(found)}); };
        const Value is_it = found >= 0.0 && at_found(targets) == wanted;
        const auto taken = [&](const Value& number) { return sum(select(is_it, number, zero_), siblings); };
        const Value order = taken(at_found(order_));
        const Value keys = taken(at_found(keys_) + (family - other) * kinds_);
        const Value several = count_ > length;
        order_ = select(several, order, order_).named("order");
        keys_ = select(several, keys, keys_).named("keys");
        return run * runs;
    }

    // The kind of the id at each place, when all are one run.
    const Value& kinds() const { return keys_; }
    const Value& order() const { return order_; }

  private:
    Value run_of_place(std::int64_t length) const { return floor_div(place_, length); }

    // Runs of kFirstRun places, from kinds alone. What all places of a run ask of an id is (its target + 1)·kinds + its
    // kind, so that one load says whether it comes there and with which key; outside all ids it is 0.
    void sort_runs() {
        const Value run = run_of_place(kFirstRun);
        const Value first = run * static_cast<double>(kFirstRun);
        const Value other = first + neighbour_;  // a place of the run
        const Value kind = index(keys_, {Coord(other)});
        const Value before = other < count_ && (kind < keys_ || (kind == keys_ && other < place_));
        const Value own = select(other == place_, kinds_ + keys_, zero_);
        const Value targets = sum(select(before, kinds_, own), neighbours_).named("targets");
        const Value target = index(targets, {Coord(other)});
        const Value least = (place_ - first + 1.0) * kinds_;
        const Value is_it = target >= least && target < least + kinds_;
        order_ = sum(select(is_it, other, zero_), neighbours_).named("order");
        keys_ = sum(select(is_it, target - least + run * kinds_, zero_), neighbours_).named("keys");
    }

    Graph graph_;
    Axis places_;
    Axis neighbours_;
    Value place_;
    Value neighbour_;
    Value count_;
    Value zero_;
    Value kinds_;  // how many different numbers the ids are made to be
    Value keys_;   // of each place: run·kinds + the id's kind
    Value order_;  // of each place: the position of its id
};

}  // namespace

StableOrder stable_order(const Value& ids, Axis places, Axis rows, Axis ends) {
    Merger merger(ids, places, rows);
    const std::int64_t known = ids.graph()->axis(places.id).extent;
    const std::int64_t count = known == kRuntimeExtent ? kMostIds : known;
    for (std::int64_t run = kFirstRun; run < count;) run = merger.merge(run);
    const Value row = Graph(ids.graph()).iota(ends, i64);
    return {merger.order(), search(merger.kinds(), row) + 1.0};
}

}  // namespace rowjit
