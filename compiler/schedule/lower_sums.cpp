// How sums are carried: whether as a pair, what accumulators there are, and where a kernel that sums over its rows has
// its part of the sum, in registers or in memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/schedule/lower.h"
#include "compiler/schedule/lowering.h"

namespace rowjit::lowering {
namespace {

// Squares and rescaled sums of wider rows of narrow floats are carried as pairs on the CPU: in 64 plain chains f16
// layer norm met the bar at 65,536 columns and missed it at 128,256. A plain sum is of blocks (emit/llvm), of any
// width.
constexpr std::int64_t kCpuPlainColumns = 32768;

}  // namespace

// What a thread's columns of this row come to, into what it has of all rows: a sum as a pair, as those are many, unless
// it is rounded to fewer bits than their order costs. A pair is two registers, of which a group norm's twenty channels
// had eighty.
void Lowering::add_to_block(NodeId reduce, int of_row) {
    const Dtype dtype = kernel_.accumulators[static_cast<std::size_t>(of_row)].dtype;
    const std::string label = kernel_.accumulators[static_cast<std::size_t>(of_row)].label;
    AllReduce own{.accumulators = {of_row}, .results = {kernel_.value_count++}, .of_thread = true};
    Inst add{.kind = InstKind::kAccumulate, .dtype = dtype, .operands = own.results};
    add.index = static_cast<int>(kernel_.accumulators.size());
    add.comment = "the thread's columns of this row";
    const Monoid monoid = graph_.node(reduce).monoid;
    const bool is_rounded = std::ranges::all_of(
        graph_.outputs(), [&](const OutputInfo& output) { return output.node != reduce || output.parts_rounded; });
    const bool pairs = monoid == Monoid::kSum && dtype == Dtype::kF32 && !is_rounded;
    kernel_.accumulators.push_back({monoid, dtype, unique_label(label), pairs, true});
    of_block_.accumulated.push_back(add.index);
    of_block_.reduces.push_back(reduce);
    block_->push_back({std::move(own)});
    block_->push_back({std::move(add)});
}

// Components of a pair are carried together.
void Lowering::carry_output(std::size_t i) {
    const OutputInfo& output = graph_.outputs()[i];
    for (const auto& [known, carried] : carried_of_output_) {
        const OutputInfo& other = graph_.outputs()[known];
        if (components(output.parts_monoid) == 1 || other.parts_monoid != output.parts_monoid ||
            other.node != output.node)
            continue;
        carried_of_output_[i] = carried;
        return;
    }
    carried_of_output_[i] = static_cast<int>(kernel_.carried.size());
    Carried carried{output.parts_dtype, unique_label(output.name + "_part"), output.parts_monoid};
    const Node over{
        .kind = NodeKind::kReduce, .dtype = output.parts_dtype, .args = {output.node}, .monoid = output.parts_monoid};
    carried.compensated = carried.is_pair() && compensated(over);
    kernel_.carried.push_back(std::move(carried));
}

// In memory a block's part begins at what adds nothing to it; in registers it needs no statement to.
void Lowering::open_sums() {
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
        const OutputInfo& output = graph_.outputs()[i];
        if (output.slots < 0 || sums_of_block_.contains(output.node)) continue;
        if (sums_in_registers()) {
            carry_output(i);
            continue;
        }
        each_place_of_part(i, &kernel_.before, [&] {
            Inst start{.kind = InstKind::kConst, .dtype = output.parts_dtype};
            start.value = neutral(operation(output.parts_monoid));
            store_part(i, emit(std::move(start), Node{}), false);
        });
    }
}

void Lowering::close_sums() {
    block_ = &kernel_.after;
    all_reduce(of_block_.accumulated, of_block_.reduces);
    for (std::size_t i = 0; i < graph_.outputs().size(); ++i) {
        const NodeId sum = graph_.outputs()[i].node;
        if (sums_of_block_.contains(sum)) store_part(i, row_values_.at(sum), false);
    }
    block_ = &kernel_.body;
    if (kernel_.carried.empty()) return;
    if (kernel_.rows_of_place() > 1) {
        JoinRows join;
        for (std::size_t i = 0; i < kernel_.carried.size(); ++i) join.carried.push_back(static_cast<int>(i));
        kernel_.after.push_back({std::move(join)});
    }
    for (const auto& [output, carried] : carried_of_output_) {
        each_place_of_part(output, &kernel_.after, [&, output = output, carried = carried] {
            Inst part{.kind = InstKind::kCarried, .dtype = kernel_.carried[static_cast<std::size_t>(carried)].dtype};
            part.index = carried;
            part.component = graph_.outputs()[output].parts_component;
            store_part(output, emit(std::move(part), Node{}), false);
        });
    }
}

// In a column loop over the part's columns in `block`, or straight in it when the part is one number.
template <class Body>
void Lowering::each_place_of_part(std::size_t output, Block* block, const Body& body) {
    block_ = block;
    const std::vector<AxisId> axes = graph_.column_axes(graph_.node(graph_.outputs()[output].node));
    if (axes.empty()) {
        body();
    } else {
        using Part = ColumnLoop::Part;
        for (const Part part : is_peeled(axes) ? std::vector{Part::kWhole, Part::kEnds} : std::vector{Part::kRow}) {
            ColumnLoop loop = column_loop(axes, part);
            loop_body_ = &loop.body;
            body();
            loop_body_ = nullptr;
            block->push_back({std::move(loop)});
        }
    }
    block_ = &kernel_.body;
}

void Lowering::store_part(std::size_t output, ValueId part, bool accumulate) {
    const OutputInfo& info = graph_.outputs()[output];
    Inst inst{.kind = InstKind::kStore, .dtype = info.parts_dtype, .operands = {part}};
    inst.index = output_tensors_[output];
    inst.coords = own_coords(parts_axes(info));
    inst.accumulate = accumulate;
    if (accumulate) inst.op = operation(info.parts_monoid);
    inst.comment = fmt::format("part of {}", info.name);
    current().push_back(std::move(inst));
}

// This row's summand into the block's part.
void Lowering::add_to_part(std::size_t output, ValueId summand) {
    const OutputInfo& info = graph_.outputs()[output];
    const Node& node = graph_.node(info.node);
    if (node.dtype != info.parts_dtype) {
        Inst widened{.kind = InstKind::kCast, .dtype = info.parts_dtype, .operands = {summand}};
        widened.of_sum = info.parts_dtype == Dtype::kF64;
        summand = emit(std::move(widened), node);
    }
    if (!sums_in_registers()) return store_part(output, summand, true);
    Inst inst{.kind = InstKind::kCarry, .dtype = info.parts_dtype, .operands = {summand}};
    inst.index = carried_of_output_.at(output);
    const auto first = std::ranges::find(carried_of_output_, inst.index, [](const auto& pair) { return pair.second; });
    if (first->first != output) return;  // the pair has it
    inst.comment = fmt::format("part of {}", info.name);
    current().push_back(std::move(inst));
}

// Whether a sum is carried as a pair: when every term comes from an f32 of its own in memory. A result as exact as
// such data is not rounded to hide the order of its terms, and reading it leaves time for the arithmetic; narrow
// data leaves little, and a result of its own dtype hides that order, except where a lane of the CPU adds up
// thousands of terms in one chain, or where a number of the row is stored in f32: a norm's statistics, a loss.
// Deviations that are squared before the row's mean is known lose more, and are always a pair on a GPU where a
// thread takes its columns one vector after the other: where the bias of a layer norm cancels what it is added to,
// one unit of the variance shows in bf16.
bool Lowering::compensated(const Node& reduce) const {
    const bool sums = reduce.monoid != Monoid::kMax && reduce.monoid != Monoid::kMin;
    if (!sums || reduce.dtype != Dtype::kF32) return false;
    if (target_.is_gpu() && reduce.monoid == Monoid::kWelford && !schedule().unrolls()) return true;
    const Node& terms = graph_.node(reduce.args[0]);
    const bool long_chain = reduce.monoid != Monoid::kSum && graph_.column_count(terms) > kCpuPlainColumns;
    if (!target_.is_gpu() && !group_.reduces_rows && long_chain) return true;
    if (!target_.is_gpu() && shows_in_f32(reduce)) return true;
    std::set<NodeId> seen;
    std::vector<NodeId> work = {reduce.args[0]};
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        const Node& node = graph_.node(id);
        if (node.axes != terms.axes || !seen.insert(id).second) continue;
        const bool loads = node.kind == NodeKind::kInput || node.kind == NodeKind::kIndex;
        if (loads && node.dtype == Dtype::kF32) return true;
        work.insert(work.end(), node.args.begin(), node.args.end());
    }
    return false;
}

// Whether a number of the row that is stored in f32, or summed so over rows, depends on the sum.
bool Lowering::shows_in_f32(const Node& reduce) const {
    std::set<NodeId> seen;
    std::vector<NodeId> work;
    for (const OutputInfo& output : graph_.outputs()) {
        if (graph_.node(output.node).dtype == Dtype::kF32 && !columnar(output.node)) work.push_back(output.node);
    }
    while (!work.empty()) {
        const NodeId id = work.back();
        work.pop_back();
        const Node& node = graph_.node(id);
        if (!seen.insert(id).second) continue;
        if (node.kind == NodeKind::kReduce && node.monoid == reduce.monoid && node.args == reduce.args) return true;
        work.insert(work.end(), node.args.begin(), node.args.end());
    }
    return false;
}

// Whether no value of the node is below 0, as far as that shows.
bool Lowering::is_positive(NodeId id) {
    const auto [known, is_new] = is_positive_.try_emplace(id, false);
    if (is_new) known->second = find_positive(graph_.node(id));
    return known->second;
}

bool Lowering::find_positive(const Node& node) {
    const auto operand = [&](std::size_t i) { return is_positive(node.args[i]); };
    if (node.kind == NodeKind::kConst) return node.value >= 0;
    if (node.kind == NodeKind::kCast) return operand(0);
    if (node.kind != NodeKind::kMap) return false;
    switch (node.op) {
        case Op::kExp:
        case Op::kAbs: return true;
        case Op::kMul: return node.args[0] == node.args[1] || (operand(0) && operand(1));
        case Op::kAdd:
        case Op::kDiv: return operand(0) && operand(1);
        case Op::kMax: return operand(0) || operand(1);
        case Op::kSelect: return operand(1) && operand(2);
        default: return false;
    }
}

int Lowering::declare_accumulator(const Node& reduce) {
    const Dtype dtype = accumulator_dtype(graph_.node(reduce.args[0]).dtype);
    kernel_.accumulators.push_back(
        {reduce.monoid, dtype, unique_label(label_of(reduce, name(reduce.monoid)) + "_part"), compensated(reduce)});
    kernel_.accumulators.back().positive = is_positive(reduce.args[0]);
    kernel_.accumulators.back().greatest = greatest_of(reduce);
    kernel_.accumulators.back().narrow = is_narrow(graph_.node(reduce.args[0]).dtype);
    return static_cast<int>(kernel_.accumulators.size()) - 1;
}

void Lowering::accumulate(const Node& reduce, std::vector<ValueId> operands, int accumulator) {
    Inst inst{.kind = InstKind::kAccumulate};
    inst.dtype = kernel_.accumulators[static_cast<std::size_t>(accumulator)].dtype;
    inst.operands = std::move(operands);
    inst.index = accumulator;
    inst.comment = fmt::format("{} of {}", name(reduce.monoid), describe_value(reduce.args[0]));
    current().push_back(std::move(inst));
}

// How many of the greatest are asked for, where the reduction is of those.
int Lowering::greatest_of(const Node& reduce) const {
    int count = 0;
    if (reduce.monoid != Monoid::kGreatest) return count;
    for (const NodeId id : graph_.live_nodes()) {
        const Node& node = graph_.node(id);
        if (node.kind == NodeKind::kReduce && node.monoid == reduce.monoid && same_terms(node, reduce))
            count = std::max(count, node.component + 1);
    }
    return count;
}

}  // namespace rowjit::lowering
