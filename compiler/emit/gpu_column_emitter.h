// ColumnEmitter: one column loop while its GPU text is written. Private to emit/gpu_column*.cpp, which share it by what
// they write; the interface is gpu_columns.h.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/emit/gpu_column_place.h"
#include "compiler/emit/gpu_columns.h"
#include "compiler/emit/gpu_pairs.h"
#include "compiler/emit/gpu_scope.h"

namespace rowjit::gpu_emit {

class ColumnEmitter {
  public:
    ColumnEmitter(const ColumnLoop& loop, GpuScope& scope, GpuKept& kept);

    // Writes the loop.
    void run();
    // Before steps that find the row in registers: what they test of each vector is the same in all of them.
    void declare_tested();

  private:
    const KernelTensor& tensor(const Inst& inst) const { return scope_.tensor(inst); }
    const Slot& slot(const Inst& inst) const { return scope_.slot(inst); }
    bool in_registers(const Inst& inst) const { return slot(inst).residency == Residency::kRegisters; }
    std::string lane() const { return loop_.vector == 1 ? "0" : "l"; }
    std::string lane_column() const { return loop_.vector == 1 ? "c" : "(c + l)"; }
    // "[i]" where a group holds several iterations' vectors.
    std::string entry() const { return group_ > 1 ? "[i]" : ""; }
    std::string entries() const { return group_ > 1 ? fmt::format("[{}]", group_size()) : ""; }
    // Of a serial loop the prelude may make groups of one.
    std::string group_size() const {
        return resident_ || group_ == 1 ? std::to_string(group_) : fmt::format("RJ_GROUP({})", group_);
    }
    std::string iteration() const {
        if (!several_groups()) return "i";
        return group_ == 1 ? kGroup : kOfGroup;
    }
    std::string own_iteration() const { return loop_.iterations > 1 ? iteration() : ""; }
    // Which of a resident loop's vectors this iteration's is, in an array of all of them.
    std::string resident_entry() const { return loop_.iterations > 1 ? fmt::format("[{}]", iteration()) : ""; }
    // Which of them a value is taken of.
    std::string turned_iteration(const Inst& inst) const {
        if (inst.turn == 0) return iteration();
        return fmt::format("({} + {}) % {}", iteration(), inst.turn, loop_.iterations);
    }

    bool stays_in_stage(const Inst& load) const {
        return load.stage_offset_bytes >= 0 && scope_.kernel().schedule.residency == Residency::kStages;
    }

    // Iterations in groups: a resident loop that is one group needs no loop over them, and any other may be told to
    // take its iterations one by one.
    bool several_groups() const { return group_ < loop_.iterations || (!resident_ && group_ > 1); }

    // The array that an iteration's vector is an entry of.
    std::string array_of(const std::string& vec) const { return vec.substr(0, vec.size() - entry().size()); }

    // Whether the positions of a vector's lanes follow one another.
    bool is_run(const Inst& uniform) const { return loop_.vector % 4 == 0 && lane_step(uniform.operands[2]) == 1; }

    bool is_ring(const Inst& keep) const { return slot(keep).rows_back > 0 && !in_registers(keep); }

    // Before the loop, and its iterations in groups.
    void find_accesses();
    bool fetches_after_loads() const;
    bool is_single_load(const Inst& inst) const;
    void choose_group();
    void declare_divisors();
    void count_rows();
    void declare_terms();
    void declare_folds();
    void name_vectors();
    const Inst& not_turned(const Inst& turned) const;
    void single();
    bool awaits_singly() const;
    void grouped();
    void await_loads();
    void refill();
    std::string initial() const;
    void open_iterations(bool needs_column);
    bool computing_needs_column() const;
    void declare_column();
    bool divides_column() const;
    std::string has_vector() const;
    bool open_guard();
    void loads();
    std::string loaded(const Inst& load) const;
    std::string staged(std::int64_t offset_bytes, const std::string& iteration, Dtype dtype, int lanes) const;

    // Loads of which a vector needs one (gpu_column_chosen.cpp).
    void find_chosen();
    bool may_choose(const Inst& choice, std::vector<const Inst*>* loads) const;
    void note_chosen(const Inst& choice, std::set<ValueId>* within) const;
    void conditions_of_chosen();
    GpuAddress chosen_address(const Inst& choice) const;

    // What is kept between loops (gpu_column_kept.cpp).
    void declare_kept();
    std::string kept_here(const Inst& keep) const;
    const Inst* kept_load(const Inst& keep) const;
    std::string shared_offset(const Slot& slot) const;
    void take_kept();
    std::string ring_place(const Slot& window, int rows_back) const;
    const Slot* copied_to(const Inst& load) const;
    void copy(const Inst& load, const Slot& window);
    std::string kept_vector(const Inst& kept, const std::string& type) const;
    void keep(const Inst& inst);

    // Lanes (gpu_column_lanes.cpp).
    bool is_offer(const Inst& inst) const;
    void declare_offers();
    void offer();
    void compute();
    void each_lane();
    void open_lanes();
    void close_lanes();
    void conditions();
    void define_for_vector(const Inst& inst);
    void declare_lane_arrays();
    bool leaves_in_words(const Inst& inst) const;
    std::string declare_packed(const Inst& out);
    const std::string* packed_operand(const Inst& accumulate) const;
    const Inst* packed_source(const Inst& accumulate) const;
    bool takes_sizes(const Inst& accumulate) const;
    const Inst* made_here(ValueId value) const;
    std::string lane_array(const std::string& label, Dtype dtype);
    std::optional<std::int64_t> lane_step(ValueId value) const;
    void declare_permutations();
    std::string element(const Inst& inst) const;
    void lane_inst(const Inst& inst);
    // A float on its way to eight bits: rounded to a whole number or cut to one, between bounds that are whole numbers
    // themselves.
    struct WholeByte {
        ValueId value = -1;
        bool rounds = false;
        int least = -128;
        int most = 127;
    };
    std::optional<WholeByte> whole_byte(const Inst& inst) const;
    std::string text_of(const Inst& cast, const WholeByte& byte) const;
    std::string shared_divisor(const Inst& inst);
    std::string divisor_of_lane(const Inst& inst) const;
    std::string carried_place(const Inst& inst) const;
    std::string place_in_registers() const;  // of this lane, in an array of all that the thread has
    void lane_load(const Inst& inst);
    void lane_out(const Inst& inst);
    std::vector<std::string> live() const;
    bool stores_whole(const GpuAddress& at) const;
    void leave(const Inst& inst);
    void fold(const Inst& accumulate, const std::string& packed);
    std::string packed(const Inst& inst) const;
    void gather(const Inst& accumulate);

    // Sums over positions (gpu_column_sums.cpp).
    void find_sums_where();
    void declare_sums_where();

    // tanh below a cap (gpu_column_capped.cpp).
    void capped();
    bool is_below_cap(ValueId value) const;
    bool may_stand_before(const Inst& inst) const;
    bool find_parts(ValueId value, std::set<const Inst*>* parts) const;

    // Random numbers (gpu_column_random.cpp).
    void declare_fractions();
    void declare_uniforms();
    void lane_uniform(const Inst& inst);
    std::string asked_of_word(const Inst& inst, std::size_t random) const;
    bool shares_work(const Inst& inst) const;
    std::optional<std::size_t> compared_random(const Inst& inst) const;
    std::string limit_of(const Inst& inst, std::size_t random) const;
    static bool asks_beyond(const Inst& inst, std::size_t random);
    static bool asks_above(const Inst& inst, std::size_t random);
    bool is_read(const Inst& uniform) const;

    // Two lanes a word (gpu_column_words.cpp).
    void declare_splats();
    void declare_splat(ValueId value);
    const Inst* constant(ValueId value) const;
    bool packs_lanes() const;
    bool has_pairs() const;
    bool by_pairs() const { return packs_lanes() || has_pairs(); }
    void pairs();
    // What a word's select may read, for both lanes at once.
    static bool is_condition(const Inst& inst) { return inst.dtype == Dtype::kBool; }
    PairForm form(const Inst& inst) const;
    void word_inst(const Inst& inst);
    std::string word(ValueId value) const;
    std::string conditions_of_pair(ValueId condition);
    void lanes_of_pair(const std::vector<const Inst*>& all, const std::set<ValueId>& crossing);
    void round_word(const Inst& inst, const std::string& first, const std::string& second);
    void name_operands(const Inst& inst);
    void name_operand(ValueId value);

    // What most vectors leave out (gpu_column_passing.cpp).
    std::vector<const Inst*> few_pass() const;
    const Inst* rises_with(const std::vector<const Inst*>& test) const;
    static bool asks_the_greatest(const Inst& asked) { return asked.op == Op::kGt || asked.op == Op::kGe; }
    std::string tested_of(const std::vector<const Inst*>& test);
    std::string one_passes(const Inst& asked, const std::string& tested) const;
    void open_passing(const std::vector<const Inst*>& test);
    std::optional<std::size_t> compared_column(const Inst& inst) const;
    bool adds_match(const Inst& inst) const;
    std::vector<std::string> lane_matches() const;

    const ColumnLoop& loop_;
    GpuScope& scope_;
    SourceWriter& out_;
    GpuKept& kept_;

    GpuLoop inside_;
    bool resident_ = true;
    std::int64_t group_ = 1;  // iterations whose loads are issued together
    std::vector<const Inst*> front_;
    std::map<const Inst*, GpuAddress> addresses_;
    std::map<const Inst*, const Inst*> chosen_by_;  // of a load at a chosen address, what chooses
    std::map<const Inst*, const Inst*> chosen_as_;  // of loads that it stands for, that one
    std::map<const Inst*, std::string> vectors_;  // of loads and of slots in shared memory, as an iteration names them
    std::set<std::string> declared_;              // those of them that are declared before the iterations
    std::string one_matches_;                     // whether a lane of the vector is a compared_column
    std::map<const Inst*, std::string> divisors_;
    std::map<ValueId, std::string> lane_divisors_;  // of the lanes that are open
    std::map<const Inst*, std::string> capped_;     // arrays of what stands in front of the lanes
    std::map<const Inst*, std::string> uniforms_;
    // Of a kSumWhere whose lanes look through the positions together: the sums of a vector, and what is looked through.
    struct SumsWhere {
        std::string name;
        std::string rows;
    };
    std::map<const Inst*, SumsWhere> sums_where_;
    std::map<std::pair<std::string, bool>, std::string> fractions_;  // by limit, and whether it lies beyond
    std::map<const Inst*, std::string> arrays_;
    std::map<const Inst*, std::string> terms_;        // of pairs, all that a thread has
    std::map<const Inst*, std::string> folds_;        // greatest and least of vectors as they lie in memory
    std::map<const Inst*, std::string> factors_;      // second factors of sums of products, lane by lane
    std::map<const Inst*, std::string> elements_;     // of lane l, where that is not l
    std::map<const Inst*, std::string> orders_;       // the array that has them, where there is one
    std::set<const Inst*> before_lanes_;              // conditions that all lanes share, and what only they read
    std::map<const Inst*, std::string> packed_outs_;  // vectors of what leaves in words
    std::map<ValueId, std::string> words_;            // of the pair, or of all lanes
    std::map<ValueId, std::string> crossing_;         // arrays of what both lanes leave for a later turn
    std::set<ValueId> in_lanes_;                      // what the turn has named of words and vectors
    bool names_pair_ = false;                         // whether the pair's first lane has its name
};

}  // namespace rowjit::gpu_emit
