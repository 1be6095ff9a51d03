// The order in which a column loop that packs lanes is written for each pair of them: in turns of what is computed on
// words, then of what is computed lane by lane. As few turns as the values' dependencies leave, since what goes from
// one turn's lanes to another's has to be set down between them.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "compiler/kernel.h"

namespace rowjit {

struct PairTurn {
    std::vector<const Inst*> words;
    std::vector<const Inst*> lanes;  // and at their end the words of those that are Packing::kRounded
};

struct PairOrder {
    std::vector<PairTurn> turns;
    std::set<ValueId> crossing;  // values of lanes that a later turn reads, or a word's select
};

// How an instruction of the loop is written.
enum class PairForm : std::uint8_t {
    kBefore,    // before the pairs, if at all
    kOnWords,   // for both lanes
    kLanes,     // for each lane
    kAnywhere,  // for each lane, wherever one reads it: elements of vectors, coordinates, other names for a value
};

PairOrder order_pairs(const ColumnLoop& loop, const std::function<PairForm(const Inst&)>& form);

}  // namespace rowjit
