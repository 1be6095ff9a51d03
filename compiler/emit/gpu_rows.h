// Instructions outside column loops, loops over the rows that a kernel's row is the reduction of, and rows that are
// several results side by side (Kernel::lanes_axis): what differs between those is an array with an entry for each.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/emit/gpu_scope.h"

namespace rowjit {

// Which positions of its loop a thread adds up: from `first` on a batch of them, so many apart, and the next batch
// `step` further on, while they are below `end`. Before position p is added there is a line for it.
struct GpuPositions {
    std::string first;
    std::string end;
    int apart = 1;
    std::string step = {};
    std::string before_each = {};
};

class RowsEmitter {
  public:
    explicit RowsEmitter(GpuScope& scope);

    // A store happens under `conditions`.
    void inst(const Inst& inst, const std::vector<std::string>& conditions);
    // Whether several of a row's own quotients are of this divisor.
    bool divides_several(ValueId value) const { return shared_divisors_.contains(value); }
    void loop(const RowsLoop& loop);
    // Of a row of several results, the loop over those positions.
    void lanes_loop(const RowsLoop& loop, const GpuPositions& positions);
    // Of how many positions a thread then has the loads in flight at once.
    int batch(const RowsLoop& loop) const;

  private:
    bool differs(const Inst& inst) const;
    void find_shared_divisors();
    void scalar_inst(const Inst& inst, const GpuLoop& loop, const std::vector<std::string>& conditions);
    void lane_store(const Inst& inst, const std::vector<std::string>& conditions);
    GpuPositions of_thread(const std::string& begin, const std::string& end, const RowsLoop& loop) const;
    void all_rows_loop(const RowsLoop& loop, const std::string& positions);
    void segment_loop(const RowsLoop& loop);
    static std::vector<const Inst*> read_first(const RowsLoop& loop);
    void batched_loop(const RowsLoop& loop, const std::string& begin, const std::string& end, int size, bool folds);
    std::string first_of_thread(const std::string& begin) const;
    template <class Emit>
    void position(const RowsLoop& loop, const Emit& emit);
    template <class Body>
    void each_lane(const Body& body);
    template <class Emit>
    void each_of_batch(const RowsLoop& loop, const GpuPositions& positions, const std::string& first, const Emit& emit);
    std::set<ValueId> conditions_to_add(const RowsLoop& loop) const;
    void declare_divisors(const RowsLoop& loop);
    void declare_positions(const RowsLoop& loop);
    bool adds_to_pair(const Inst& inst) const;
    static bool uses(const Inst& inst, const std::vector<const Inst*>& values);

    GpuScope& scope_;
    const Kernel& kernel_;
    SourceWriter& out_;
    std::set<ValueId> lane_values_;
    std::set<ValueId> shared_divisors_;
    std::map<const Inst*, std::string> divisors_;  // of a loop's quotients by what stands before it
};

}  // namespace rowjit
