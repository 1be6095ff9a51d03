// Functions of weights alone, as the reciprocal root of a batch norm's variances, which are the same for every row: a
// block that stays for many rows computes them before the first, and has their results where it would hold what they
// are of. Compilers move some such functions out of the rows' loop by themselves, but none with a branch: normalising
// rows of 1024 bf16 columns by given moments took 39 instructions an element, of which 25 made the root again.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/passes/passes.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

// The functions of one loop's tables.
class TableFunctions {
  public:
    TableFunctions(Kernel* kernel, std::size_t at, bool prepares) : kernel_(*kernel), at_(at) {
        for (const Stmt& stmt : kernel_.body) {
            const auto* inst = std::get_if<Inst>(&stmt.node);
            if (inst != nullptr && (inst->kind == InstKind::kConst || inst->kind == InstKind::kScalar))
                numbers_[inst->id] = inst;
        }
        for (const Inst& inst : loop().body) {
            if (is_of_tables(inst)) {
                of_tables_.insert(inst.id);
                const bool is_function = inst.kind == InstKind::kMap && is_special(inst.op);
                if (is_function ||
                    std::ranges::any_of(inst.operands, [&](ValueId id) { return functions_.contains(id); }))
                    functions_.insert(inst.id);
                continue;
            }
            const bool divides = prepares && is_quotient(inst) && of_tables_.contains(inst.operands[1]);
            if (divides) divisors_.insert(inst.operands[1]);
            each_use(inst, [&](ValueId value) {
                if (functions_.contains(value) && !(divides && value == inst.operands[1])) used_.insert(value);
            });
        }
    }

    bool found() const { return !used_.empty() || !divisors_.empty(); }
    bool prepares() const { return !divisors_.empty(); }

    // Into a loop before the rows, and what it kept in their place.
    void move() {
        std::set<ValueId> wanted = used_;
        wanted.insert(divisors_.begin(), divisors_.end());
        ColumnLoop before = loop();
        before.body.clear();
        std::map<ValueId, ValueId> moved;
        const auto in_before = [&](ValueId id) {
            const auto [known, is_new] = moved.try_emplace(id, kernel_.value_count);
            if (is_new) ++kernel_.value_count;
            return known->second;
        };
        const auto copied = [&](Inst inst) {
            inst.id = in_before(inst.id);
            for (ValueId& operand : inst.operands) operand = in_before(operand);
            return inst;
        };
        const std::vector<Inst> written = loop().body;
        for (const Inst& inst : std::views::reverse(written)) {
            if (!wanted.contains(inst.id) || !of_tables_.contains(inst.id)) continue;
            wanted.insert(inst.operands.begin(), inst.operands.end());
            before.body.push_back(copied(inst));
        }
        std::ranges::reverse(before.body);
        for (const auto& [id, number] : numbers_) {
            if (wanted.contains(id)) kernel_.before.push_back({copied(*number)});
        }
        for (const ValueId id : divisors_) keep_divisor(id, in_before(id), &before);
        for (const ValueId id : used_) keep(id, in_before(id), &before);
        kernel_.before.push_back({std::move(before)});
        drop_unused(&loop(), [&](const Inst& inst) { return of_tables_.contains(inst.id); });
    }

  private:
    // Of f32, by any number.
    static bool is_quotient(const Inst& inst) {
        return inst.kind == InstKind::kMap && inst.op == Op::kDiv && inst.dtype == Dtype::kF32 && !inst.by_one_up;
    }

    ColumnLoop& loop() { return std::get<ColumnLoop>(kernel_.body[at_].node); }

    bool is_of_tables(const Inst& inst) {
        if (inst.kind == InstKind::kCoord) return std::ranges::find(loop().axes, inst.axis) != loop().axes.end();
        if (inst.kind == InstKind::kLoad) {
            const auto is_of_data = [](const Coord& coord) { return !coord.data_nodes().empty(); };
            return is_same_for_all_rows(kernel_, inst) && std::ranges::none_of(inst.coords, is_of_data);
        }
        return (inst.kind == InstKind::kMap || inst.kind == InstKind::kCast) &&
               std::ranges::all_of(inst.operands,
                                   [&](ValueId id) { return of_tables_.contains(id) || numbers_.contains(id); });
    }

    void keep(ValueId id, ValueId kept, ColumnLoop* before) {
        Inst& made = *std::ranges::find(loop().body, id, &Inst::id);
        const int slot = static_cast<int>(kernel_.slots.size());
        kernel_.slots.push_back({.dtype = made.dtype, .residency = Residency::kRegisters, .label = made.label});
        before->body.push_back({.kind = InstKind::kKeep, .dtype = made.dtype, .operands = {kept}, .index = slot});
        made = {.kind = InstKind::kKept, .id = id, .dtype = made.dtype, .index = slot, .label = made.label};
    }

    // For the quotients by it alone: other uses have the value itself.
    void keep_divisor(ValueId id, ValueId kept, ColumnLoop* before) {
        std::vector<Inst>& body = loop().body;
        const std::string label = std::ranges::find(body, id, &Inst::id)->label + "_divisor";
        const int slot = static_cast<int>(kernel_.slots.size());
        kernel_.slots.push_back({.residency = Residency::kRegisters, .label = label, .is_divisor = true});
        before->body.push_back({.kind = InstKind::kKeep, .operands = {kept}, .index = slot});
        const Inst divisor = {.kind = InstKind::kKept, .id = kernel_.value_count++, .index = slot, .label = label};
        const auto divides = [&](const Inst& inst) {
            return is_quotient(inst) && inst.operands[1] == id && !of_tables_.contains(inst.id);
        };
        const auto first = body.insert(std::ranges::find_if(body, divides), divisor);
        for (Inst& inst : std::ranges::subrange(first, body.end())) {
            if (divides(inst)) inst.operands[1] = divisor.id;
        }
    }

    Kernel& kernel_;
    std::size_t at_;
    std::map<ValueId, const Inst*> numbers_;
    std::set<ValueId> of_tables_;
    std::set<ValueId> functions_;  // of those, what takes a function to compute
    std::set<ValueId> used_;       // of these, what something of the row is computed with
    std::set<ValueId> divisors_;   // of tables, what something of the row is divided by
};

}  // namespace

Kernel keep_table_functions(Kernel kernel, const Target& target) {
    if (!target.is_gpu() || kernel.schedule.blocks_per_sm == 0 || kernel.walk) return kernel;
    for (std::size_t at = 0; at < kernel.body.size(); ++at) {
        const auto* loop = std::get_if<ColumnLoop>(&kernel.body[at].node);
        if (loop == nullptr || !loop->is_resident() || loop->is_peeled()) continue;
        // Divisors take most of the registers: the functions may have room without them.
        for (const bool prepares : {true, false}) {
            const TableFunctions tables(&kernel, at, prepares);
            if (!tables.found() || tables.prepares() != prepares) continue;
            Kernel moved = kernel;
            TableFunctions(&moved, at, prepares).move();
            if (spare_registers(moved, target) < kHeldMargin) continue;
            kernel = std::move(moved);
            break;
        }
    }
    return kernel;
}

}  // namespace rowjit
