// Reductions over row axes: the threads of a block share the reduced rows and fold in a fixed order, so the result does
// not depend on how the device schedules blocks.
#include "compiler/schedule/choose.h"

namespace rowjit {

FamilyOffer offer_rows_reduction(const GroupFacts& facts, const Target& target) {
    FamilyOffer offer{Family::kRowsReduction, {}, ""};
    if (!facts.reduces_rows) {
        offer.declined = "no reduction over rows";
        return offer;
    }
    Schedule s;
    s.family = Family::kRowsReduction;
    if (!target.is_gpu()) {
        // Lanes are neighbouring results. A block is at least a cache line of them, so that no two threads write one
        // line and ranges of blocks begin at whole vectors.
        s.rows_per_block = facts.scalar_rows ? 1 : 64;
        for (const int vector : {32, 16}) {
            s.vector = vector;
            offer.schedules.push_back(s);
        }
        return offer;
    }
    // A single result has the whole block at its rows; many results keep a warp on each.
    const std::vector<int> widths = facts.scalar_rows ? std::vector<int>{1024, 256} : std::vector<int>{32, 128};
    for (const int threads : widths) {
        s.threads_per_row = threads;
        s.rows_per_block = threads >= 128 ? 1 : 128 / threads;
        offer.schedules.push_back(s);
    }
    return offer;
}

}  // namespace rowjit
