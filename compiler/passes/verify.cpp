// The loop IR's rules, checked between passes.
#include <set>

#include "base/check.h"
#include "base/dtype.h"
#include "compiler/passes/passes.h"

namespace rowjit {
namespace {

class Verifier {
  public:
    Verifier(const Kernel& kernel, std::string_view after)
        : kernel_(kernel), after_(after), state_(static_cast<std::size_t>(kernel.value_count), State::kUndefined) {}

    void run() {
        for (const Block* block : {&kernel_.before, &kernel_.body, &kernel_.after}) check(*block);
    }

  private:
    void check(const Block& block) {
        RJ_CHECK(&block != &kernel_.after || block.empty() || kernel_.slots_axis >= 0,
                 "{}: {}: statements behind the rows and no slots axis", after_, kernel_.name);
        bool whole = false;  // the statement before is a peeled row's whole vectors
        for (const Stmt& stmt : block) {
            const auto* columns = std::get_if<ColumnLoop>(&stmt.node);
            RJ_CHECK(whole == (columns != nullptr && columns->part == ColumnLoop::Part::kEnds),
                     "{}: {}: whole vectors and ends of a row stand apart", after_, kernel_.name);
            whole = columns != nullptr && columns->part == ColumnLoop::Part::kWhole;
            if (const auto* inst = std::get_if<Inst>(&stmt.node)) instruction(*inst, false);
            if (const auto* loop = std::get_if<ColumnLoop>(&stmt.node)) column_loop(*loop);
            if (const auto* rows = std::get_if<RowsLoop>(&stmt.node)) rows_loop(*rows);
            if (const auto* reduce = std::get_if<AllReduce>(&stmt.node)) all_reduce(*reduce);
            if (const auto* join = std::get_if<JoinRows>(&stmt.node)) {
                for (const int index : join->carried) carried(index);
            }
            if (const auto* open = std::get_if<OpenSteps>(&stmt.node)) open_steps(*open);
            if (const auto* close = std::get_if<CloseSteps>(&stmt.node)) close_steps(*close);
        }
        RJ_CHECK(!in_steps_, "{}: {}: steps that nothing closes", after_, kernel_.name);
    }

    void carried(int index) const {
        RJ_CHECK(in_table(index, kernel_.carried.size()), "{}: {}: carried {}", after_, kernel_.name, index);
    }

    void open_steps(const OpenSteps& steps) {
        RJ_CHECK(!in_steps_ && steps.most_steps > 0, "{}: {}: {} steps, within others: {}", after_, kernel_.name,
                 steps.most_steps, in_steps_);
        in_steps_ = true;
        use(steps.start);
        outside_steps_ = defined_.size();
        define(steps.state);
    }

    void close_steps(const CloseSteps& steps) {
        RJ_CHECK(in_steps_, "{}: {}: a close of no steps", after_, kernel_.name);
        in_steps_ = false;
        use(steps.next);
        for (const CloseSteps::OfLast& last : steps.of_last) use(last.value);
        end_scope(outside_steps_);
        define(steps.result);
        for (const CloseSteps::OfLast& last : steps.of_last) define(last.result);
    }

    void column_loop(const ColumnLoop& loop) {
        std::int64_t columns = 1;
        for (const AxisId axis : loop.axes) columns *= kernel_.axis(axis).extent;
        RJ_CHECK(columns == loop.columns, "{}: {}: a loop of {} columns over axes of {}", after_, kernel_.name,
                 loop.columns, columns);
        const std::int64_t covered =
            loop.iterations * loop.vector * kernel_.schedule.threads_per_row * kernel_.schedule.column_blocks;
        const bool exactly = loop.is_peeled() ? kernel_.whole_iterations(loop) == loop.iterations : covered == columns;
        RJ_CHECK(covered >= kernel_.places(loop) && (loop.tail == ColumnLoop::Tail::kNone) == exactly,
                 "{}: {}: {} columns covered by {} with tail {}", after_, kernel_.name, columns, covered,
                 static_cast<int>(loop.tail));
        RJ_CHECK(!loop.is_peeled() || kernel_.peeled_by.has_value(), "{}: {}: part {} of a row", after_, kernel_.name,
                 static_cast<int>(loop.part));
        RJ_CHECK(loop.is_peeled() || loop.tail != ColumnLoop::Tail::kVector || columns % loop.vector == 0,
                 "{}: {}: {} columns in whole vectors of {}", after_, kernel_.name, columns, loop.vector);
        body(loop.body);
        for (const Inst& inst : loop.body) {
            RJ_CHECK(inst.packing == Packing::kNone || (is_narrow(inst.dtype) && loop.vector % 2 == 0),
                     "{}: {}: two lanes of %{} in a word, of vectors of {} {}", after_, kernel_.name, inst.id,
                     loop.vector, name(inst.dtype));
            RJ_CHECK(
                inst.packing != Packing::kComputed || (inst.kind == InstKind::kMap && !info(inst.op).packed.empty()),
                "{}: {}: %{} is computed on words", after_, kernel_.name, inst.id);
        }
    }

    void rows_loop(const RowsLoop& loop) {
        RJ_CHECK((loop.begin < 0) == (loop.segments < 0) && (loop.begin < 0 || loop.axes.size() == 1),
                 "{}: {}: a segment of {} axes", after_, kernel_.name, loop.axes.size());
        if (loop.begin >= 0) use(loop.begin);
        if (loop.begin >= 0) use(loop.end);
        body(loop.body);
    }

    void body(const std::vector<Inst>& insts) {
        const std::size_t outer = defined_.size();
        for (const Inst& inst : insts) instruction(inst, true);
        end_scope(outer);  // lane values end with their loop
    }

    void instruction(const Inst& inst, bool in_loop) {
        each_use(inst, [&](ValueId value) { use(value); });
        if (inst.kind == InstKind::kMap) {
            RJ_CHECK(static_cast<int>(inst.operands.size()) == info(inst.op).arity, "{}: {}: {} has {} operands",
                     after_, kernel_.name, info(inst.op).name, inst.operands.size());
        }
        if (inst.kind == InstKind::kLoad || inst.kind == InstKind::kStore) {
            RJ_CHECK(in_table(inst.index, kernel_.tensors.size()), "{}: {}: tensor {}", after_, kernel_.name,
                     inst.index);
            const KernelTensor& tensor = kernel_.tensors[static_cast<std::size_t>(inst.index)];
            RJ_CHECK(inst.coords.size() == tensor.axes.size(), "{}: {}: {} coordinates for {}", after_, kernel_.name,
                     inst.coords.size(), tensor.name);
            RJ_CHECK(inst.dtype == tensor.dtype, "{}: {}: dtype of {}", after_, kernel_.name, tensor.name);
        }
        if (inst.kind == InstKind::kSearch) {
            RJ_CHECK(in_table(inst.index, kernel_.tensors.size()) && inst.operands.size() == 1, "{}: {}: search of {}",
                     after_, kernel_.name, inst.index);
        }
        if (inst.kind == InstKind::kSumWhere) {
            RJ_CHECK(in_table(inst.index, kernel_.tensors.size()) && in_table(inst.places, kernel_.tensors.size()) &&
                         inst.operands.size() == 1,
                     "{}: {}: a sum of {} where {}", after_, kernel_.name, inst.index, inst.places);
        }
        if (inst.kind == InstKind::kAccumulate) {
            RJ_CHECK(in_table(inst.index, kernel_.accumulators.size()), "{}: {}: accumulator {}", after_, kernel_.name,
                     inst.index);
        }
        if (inst.kind == InstKind::kKeep || inst.kind == InstKind::kKept) {
            RJ_CHECK(in_loop && in_table(inst.index, kernel_.slots.size()), "{}: {}: slot {}", after_, kernel_.name,
                     inst.index);
            RJ_CHECK(inst.rows_back <= kernel_.slots[static_cast<std::size_t>(inst.index)].rows_back,
                     "{}: {}: slot {} has no row {} back", after_, kernel_.name, inst.index, inst.rows_back);
            if (inst.kind == InstKind::kKeep) written_slots_.insert(inst.index);
            RJ_CHECK(written_slots_.contains(inst.index), "{}: {}: slot {} is read before it is written", after_,
                     kernel_.name, inst.index);
        }
        RJ_CHECK(inst.turn == 0 || (in_loop && kernel_.schedule.unrolls()), "{}: {}: {} is turned in a serial loop",
                 after_, kernel_.name, inst.label);
        if (inst.kind == InstKind::kCarry || inst.kind == InstKind::kCarried) carried(inst.index);
        // What a step does it may do several times, and what it keeps is declared where it ends.
        const bool once =
            inst.kind == InstKind::kStore || inst.kind == InstKind::kCarry || inst.kind == InstKind::kKeep;
        RJ_CHECK(!in_steps_ || !once, "{}: {}: a step stores, carries or keeps a value", after_, kernel_.name);
        if (inst.id >= 0) define(inst.id);
    }

    void all_reduce(const AllReduce& reduce) {
        std::size_t results = 0;
        for (const int index : reduce.accumulators) {
            RJ_CHECK(in_table(index, kernel_.accumulators.size()), "{}: {}: accumulator {}", after_, kernel_.name,
                     index);
            results += static_cast<std::size_t>(kernel_.accumulators[static_cast<std::size_t>(index)].components());
        }
        RJ_CHECK(results == reduce.results.size(), "{}: {}: {} results of an all-reduce, {} named", after_,
                 kernel_.name, results, reduce.results.size());
        for (const ValueId result : reduce.results) define(result);
    }

    void use(ValueId value) const {
        RJ_CHECK(in_table(value, state_.size()) && state_[static_cast<std::size_t>(value)] == State::kInScope,
                 "{}: {}: %{} is used out of its scope", after_, kernel_.name, value);
    }

    void define(ValueId value) {
        RJ_CHECK(in_table(value, state_.size()) && state_[static_cast<std::size_t>(value)] == State::kUndefined,
                 "{}: {}: %{} is defined twice", after_, kernel_.name, value);
        state_[static_cast<std::size_t>(value)] = State::kInScope;
        defined_.push_back(value);
    }

    // Of all but the first so many that are in scope.
    void end_scope(std::size_t outer) {
        for (std::size_t i = outer; i < defined_.size(); ++i)
            state_[static_cast<std::size_t>(defined_[i])] = State::kOutOfScope;
        defined_.resize(outer);
    }

    static bool in_table(int index, std::size_t size) { return index >= 0 && static_cast<std::size_t>(index) < size; }

    const Kernel& kernel_;
    std::string_view after_;
    enum class State : std::uint8_t { kUndefined, kInScope, kOutOfScope };
    std::vector<State> state_;      // by value
    std::vector<ValueId> defined_;  // in scope, in the order of their definitions
    std::set<int> written_slots_;
    bool in_steps_ = false;
    std::size_t outside_steps_ = 0;  // how many were in scope before them
};

}  // namespace

void verify(const Kernel& kernel, std::string_view after) { Verifier(kernel, after).run(); }

}  // namespace rowjit
