#include "compiler/emit/gpu_pairs.h"

#include <map>

#include "base/check.h"

namespace rowjit {
namespace {

class Orderer {
  public:
    Orderer(const ColumnLoop& loop, const std::function<PairForm(const Inst&)>& form) : form_(form) {
        for (const Inst& inst : loop.body) {
            if (inst.id >= 0) made_by_[inst.id] = &inst;
            const PairForm as = form(inst);
            if (as == PairForm::kOnWords || as == PairForm::kLanes) waiting_.push_back(&inst);
        }
    }

    PairOrder run() {
        PairOrder order;
        for (int turn = 0; !waiting_.empty(); ++turn) {
            const std::size_t before = waiting_.size();
            order.turns.push_back({take(turn, PairForm::kOnWords), take(turn, PairForm::kLanes)});
            RJ_CHECK(waiting_.size() < before, "emit gpu: {} statements wait for each other", before);
        }
        for (const PairTurn& turn : order.turns) {
            for (const Inst* inst : turn.words) note_crossing(*inst, order.crossing);
            for (const Inst* inst : turn.lanes) note_crossing(*inst, order.crossing);
        }
        return order;
    }

  private:
    // Takes what can be written in this turn. A place of memory is stored to after all loads that stand before.
    std::vector<const Inst*> take(int turn, PairForm form) {
        std::vector<const Inst*> taken;
        std::vector<const Inst*> left;
        bool loads_wait = false;
        for (const Inst* inst : waiting_) {
            const bool waits = inst->kind == InstKind::kStore && loads_wait;
            if (form_(*inst) == form && !waits && is_ready(*inst, turn)) {
                turns_[inst] = turn;
                taken.push_back(inst);
            } else {
                loads_wait = loads_wait || inst->kind == InstKind::kLoad;
                left.push_back(inst);
            }
        }
        waiting_ = left;
        return taken;
    }

    bool is_ready(const Inst& inst, int turn) const {
        for (const Inst* source : sources(inst)) {
            const auto written = turns_.find(source);
            if (written == turns_.end()) return false;
            // Lanes are read by lanes of the same turn; as words, those of their turn's end are there in the next.
            const bool by_lane = form_(*source) == PairForm::kLanes;
            const bool at_end = by_lane && (source->packing == Packing::kRounded || form_(inst) == PairForm::kOnWords);
            if (at_end && written->second == turn) return false;
        }
        return true;
    }

    // The statements that an instruction reads from.
    std::set<const Inst*> sources(const Inst& inst) const {
        std::set<const Inst*> found;
        const auto add = [&](ValueId value) {
            const auto made = made_by_.find(value);
            if (made == made_by_.end()) return;
            const PairForm as = form_(*made->second);
            if (as == PairForm::kBefore) return;
            if (as == PairForm::kAnywhere) {
                found.merge(sources(*made->second));
            } else {
                found.insert(made->second);
            }
        };
        each_use(inst, add);
        return found;
    }

    void note_crossing(const Inst& reader, std::set<ValueId>& crossing) const {
        for (const Inst* source : sources(reader)) {
            if (form_(*source) != PairForm::kLanes || source->packing == Packing::kRounded) continue;
            if (form_(reader) == PairForm::kOnWords || turns_.at(source) != turns_.at(&reader))
                crossing.insert(source->id);
        }
    }

    const std::function<PairForm(const Inst&)>& form_;
    std::map<ValueId, const Inst*> made_by_;
    std::vector<const Inst*> waiting_;
    std::map<const Inst*, int> turns_;
};

}  // namespace

PairOrder order_pairs(const ColumnLoop& loop, const std::function<PairForm(const Inst&)>& form) {
    return Orderer(loop, form).run();
}

}  // namespace rowjit
