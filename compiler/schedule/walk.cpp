#include "compiler/schedule/walk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

// A value as some class of values has it so many rows further on. Two values are of one class where each is the other,
// asked of another row: what they are made of is, by the same number of rows.
struct Place {
    int of = -1;             // the class
    std::int64_t shift = 0;  // rows; 0 of what is the same in all of them
};

struct Class {
    Inst inst;                   // the first of them; data of coordinates are indices into `uses`
    std::vector<Place> uses;     // operands, then data, by rows from its own
    bool moves = false;          // differs from row to row
    bool in_loop = false;        // over the columns
    std::int64_t dearness = 0;   // about how many instructions it takes, those it is made of counted
    std::set<std::int64_t> at;   // rows of which it is wanted
    std::int64_t warm_rows = 0;  // rows before a run's first that it must be right in
    bool windowed = false;

    std::int64_t newest() const { return *at.rbegin(); }
    std::int64_t rows_back() const { return newest() - *at.begin(); }
};

class Walking {
  public:
    Walking(Kernel kernel, const Target& target) : kernel_(std::move(kernel)), target_(target) {}

    Offer<Kernel> run() {
        if (auto declined = conflict()) return *declined;
        for (const Stmt& stmt : kernel_.body) {
            if (const auto* inst = std::get_if<Inst>(&stmt.node)) note(*inst, false);
        }
        for (const Inst& inst : loop().body) note(inst, true);
        find_wanted();
        const bool loads = std::any_of(classes_.begin(), classes_.end(), [](const Class& one) { return one.windowed; });
        if (!loads) return Declined{"no columns of a row are loaded"};
        const std::int64_t warm_rows = warm_rows_before();
        if (warm_rows > kMostRowsBack)
            return Declined{
                fmt::format("rows are made of {} before them; a thread keeps {}", warm_rows, kMostRowsBack)};
        write(warm_rows);
        return std::move(kernel_);
    }

  private:
    ColumnLoop& loop() { return std::get<ColumnLoop>(kernel_.body.back().node); }

    std::optional<Declined> conflict() const {
        const Block& body = kernel_.body;
        const auto is_inst = [](const Stmt& stmt) { return std::holds_alternative<Inst>(stmt.node); };
        if (kernel_.row_axes.empty()) return Declined{"there is one row"};
        if (!kernel_.apart.empty()) return Declined{"a thread's rows are apart from each other"};
        if (!kernel_.outer.empty()) return Declined{"a block's rows are those of one position along other axes"};
        const bool one_loop = !body.empty() && std::holds_alternative<ColumnLoop>(body.back().node) &&
                              std::all_of(body.begin(), std::prev(body.end()), is_inst);
        if (!one_loop) return Declined{"a row is more than a loop over its columns"};
        const auto& loop = std::get<ColumnLoop>(body.back().node);
        if (!loop.unrolled || loop.iterations > 1 || loop.is_peeled())
            return Declined{"a thread has more than one vector of a row"};
        const bool overwrites = std::any_of(kernel_.tensors.begin(), kernel_.tensors.end(), [](const auto& tensor) {
            return tensor.written && (tensor.read || tensor.aliased);
        });
        if (overwrites) return Declined{"rows that are read ahead are overwritten"};
        return std::nullopt;
    }

    AxisId axis() const { return kernel_.row_axes.back(); }

    // ---- what is what of another row -------------------------------------------------------------------------------

    static bool is_root(const Inst& inst) { return inst.id < 0; }

    void note(const Inst& inst, bool in_loop) {
        if (is_root(inst)) {
            for (const ValueId operand : inst.operands) roots_.push_back(places_.at(operand));
            return;
        }
        if (const auto moved = moved_coordinate(inst)) {
            places_[inst.id] = *moved;
            return;
        }
        Class made{.inst = inst, .in_loop = in_loop};
        made.moves = inst.kind == InstKind::kCoord && inst.axis == axis();
        for (const ValueId operand : inst.operands) made.uses.push_back(places_.at(operand));
        for (Coord& coord : made.inst.coords) coord = coordinate_of_uses(coord, &made.uses);
        std::optional<std::int64_t> furthest;
        for (const Place& use : made.uses) {
            if (!of(use).moves) continue;
            made.moves = true;
            furthest = std::max(furthest.value_or(use.shift), use.shift);
        }
        for (Place& use : made.uses) use.shift -= of(use).moves ? *furthest : 0;
        made.dearness = dearness(made);
        const auto [known, is_new] = known_.try_emplace(key(made), static_cast<int>(classes_.size()));
        if (is_new) classes_.push_back(std::move(made));
        places_[inst.id] = {known->second, furthest.value_or(0)};
    }

    Class& of(const Place& place) { return classes_[static_cast<std::size_t>(place.of)]; }
    const Class& of(const Place& place) const { return classes_[static_cast<std::size_t>(place.of)]; }

    // The coordinate along the rows, a constant added: the coordinate of another row.
    std::optional<Place> moved_coordinate(const Inst& inst) const {
        if (inst.kind != InstKind::kMap || (inst.op != Op::kAdd && inst.op != Op::kSub)) return std::nullopt;
        const Place first = places_.at(inst.operands[0]);
        const Place second = places_.at(inst.operands[1]);
        const Inst& added = of(second).inst;
        if (!is_row_coordinate(first) || added.kind != InstKind::kConst) return std::nullopt;
        const auto rows = static_cast<std::int64_t>(added.value);
        return Place{first.of, first.shift + (inst.op == Op::kAdd ? rows : -rows)};
    }

    // The coordinate with every data node, and every mention of the row itself, a use.
    Coord coordinate_of_uses(const Coord& coord, std::vector<Place>* uses) {
        const auto use = [&](const Place& place) {
            uses->push_back(place);
            return Coord::data_node(static_cast<std::int32_t>(uses->size()) - 1);
        };
        if (coord.kind() == Coord::Kind::kAdd && coord.left().kind() == Coord::Kind::kData &&
            coord.right().kind() == Coord::Kind::kConst) {
            const Place data = places_.at(coord.left().data());
            if (is_row_coordinate(data)) return use({data.of, data.shift + coord.right().constant()});
        }
        return coord.substitute([&](Axis at) { return at.id == axis() ? use({row_coordinate(), 0}) : Coord(at); },
                                [&](std::int32_t data) { return use(places_.at(data)); });
    }

    bool is_row_coordinate(const Place& place) const {
        const Class& one = of(place);
        return one.inst.kind == InstKind::kCoord && one.moves && one.inst.dtype == Dtype::kI64;
    }

    // The class of the coordinate along the rows.
    int row_coordinate() {
        Class made{.inst = {.kind = InstKind::kCoord, .dtype = Dtype::kI64}, .moves = true};
        made.inst.axis = axis();
        made.inst.label = "at_row";
        const auto [known, is_new] = known_.try_emplace(key(made), static_cast<int>(classes_.size()));
        if (is_new) classes_.push_back(std::move(made));
        return known->second;
    }

    // All that a value is made of, but by which name and in which kernel.
    static std::string key(const Class& made) {
        const Inst& inst = made.inst;
        std::string text = fmt::format("{} {} {} {} {} {:a}", static_cast<int>(inst.kind), name(inst.dtype),
                                       static_cast<int>(inst.op), inst.index, inst.axis, inst.value);
        for (const Place& use : made.uses) text += fmt::format(" %{}@{}", use.of, use.shift);
        for (const Coord& coord : inst.coords)
            text += fmt::format(" {}", coord.print([](Axis at) { return fmt::format("axis{}", at.id); },
                                                   [](std::int32_t use) { return fmt::format("use{}", use); }));
        return text;
    }

    // What it would take to compute it again of what was loaded.
    std::int64_t dearness(const Class& made) const {
        constexpr std::int64_t kSpecialInstructions = 8;
        constexpr std::int64_t kMostInstructions = 1000;  // what several share is counted for each of them
        if (!made.in_loop || made.inst.kind == InstKind::kLoad) return 0;
        std::int64_t sum = made.inst.kind == InstKind::kMap && is_special(made.inst.op) ? kSpecialInstructions : 1;
        for (const Place& use : made.uses) sum += of(use).moves ? of(use).dearness : 0;
        return std::min(sum, kMostInstructions);
    }

    // ---- what is kept ----------------------------------------------------------------------------------------------

    static bool is_column_load(const Class& one) {
        return one.in_loop && one.moves && one.inst.kind == InstKind::kLoad;
    }

    // A kept value takes a register for each row back, and an instruction for each row where it moves on. H200, a
    // convolution's backward: 0.203 ms where the rows are kept as they are widened, 0.252 where each is widened again.
    static bool is_kept(const Class& one) {
        if (!one.moves || !one.in_loop || one.at.size() < 2) return false;
        return 2 * one.dearness * (std::ssize(one.at) - 1) > one.rows_back();
    }

    // Of which rows each value is wanted, users before what they use: one that is kept is computed of the furthest, and
    // loads of rows further ahead.
    void find_wanted() {
        for (const Place& root : roots_) of(root).at.insert(root.shift);
        for (Class& one : reversed()) {
            if (one.at.empty()) continue;
            if (is_column_load(one)) one.at.insert(one.newest() + kernel_.schedule.ahead);
            one.windowed = is_column_load(one) || is_kept(one);
            for (const std::int64_t shift : computed_at(one)) {
                for (const Place& use : one.uses) of(use).at.insert(of(use).moves ? shift + use.shift : 0);
            }
        }
    }

    static std::set<std::int64_t> computed_at(const Class& one) {
        return one.windowed ? std::set<std::int64_t>{one.newest()} : one.at;
    }

    std::vector<std::reference_wrapper<Class>> reversed() { return {classes_.rbegin(), classes_.rend()}; }

    // How many rows before its first a run begins at, for its windows to be filled.
    std::int64_t warm_rows_before() {
        std::int64_t most = 0;
        for (Class& one : reversed()) {
            if (one.at.empty() || !one.moves) continue;
            if (one.windowed) one.warm_rows += one.rows_back();
            most = std::max(most, one.warm_rows);
            for (const Place& use : one.uses) of(use).warm_rows = std::max(of(use).warm_rows, one.warm_rows);
        }
        return most;
    }

    // ---- the new kernel --------------------------------------------------------------------------------------------

    void write(std::int64_t warm_rows) {
        std::vector<Inst> roots;
        Block row_roots;
        for (const Stmt& stmt : kernel_.body) {
            const auto* inst = std::get_if<Inst>(&stmt.node);
            if (inst != nullptr && is_root(*inst)) row_roots.push_back(stmt);
        }
        std::copy_if(loop().body.begin(), loop().body.end(), std::back_inserter(roots), is_root);
        ColumnLoop columns = loop();
        columns.body.clear();
        vector_ = columns.vector;
        kernel_.body.clear();
        for (int i = 0; i < static_cast<int>(classes_.size()); ++i) {
            for (const std::int64_t shift : computed_at(classes_[static_cast<std::size_t>(i)]))
                write_value({i, shift}, &columns.body);
            keep({i, 0}, &columns.body);
        }
        for (Inst& root : roots) columns.body.push_back(with_values(std::move(root)));
        for (Stmt& stmt : row_roots) kernel_.body.push_back({with_values(std::get<Inst>(stmt.node))});
        kernel_.body.push_back({std::move(columns)});
        kernel_.walk = Walk{axis(), static_cast<int>(warm_rows)};
        kernel_.shared_bytes_per_row = ring_bytes_ / kernel_.schedule.rows_per_block;
    }

    void write_value(const Place& place, std::vector<Inst>* columns) {
        const Class& one = of(place);
        Inst inst = one.inst;
        inst.id = values_[{place.of, place.shift}] = kernel_.value_count++;
        const auto value = [&](std::size_t use) {
            const Place& used = one.uses[use];
            return values_.at({used.of, of(used).moves ? place.shift + used.shift : 0});
        };
        for (std::size_t i = 0; i < inst.operands.size(); ++i) inst.operands[i] = value(i);
        for (Coord& coord : inst.coords)
            coord = coord.substitute(
                [](Axis at) { return Coord(at); },
                [&](std::int32_t use) { return Coord::data_node(value(static_cast<std::size_t>(use))); });
        const bool moved = inst.kind == InstKind::kCoord && place.shift != 0;
        if (moved) inst.id = kernel_.value_count++;
        put(inst, one.in_loop, columns);
        if (!moved) return;
        Inst rows{.kind = InstKind::kConst, .id = kernel_.value_count++, .dtype = Dtype::kI64};
        rows.value = static_cast<double>(place.shift);
        rows.label = "rows_on";
        Inst sum{.kind = InstKind::kMap, .id = values_.at({place.of, place.shift}), .dtype = Dtype::kI64};
        sum.operands = {inst.id, rows.id};
        sum.op = Op::kAdd;
        sum.label = fmt::format("row_{}_{}", std::abs(place.shift), place.shift < 0 ? "back" : "on");
        put(rows, one.in_loop, columns);
        put(sum, one.in_loop, columns);
    }

    void put(const Inst& inst, bool in_loop, std::vector<Inst>* columns) {
        in_loop ? columns->push_back(inst) : kernel_.body.push_back({inst});
    }

    // The window of a class, and what is read of it.
    void keep(const Place& place, std::vector<Inst>* columns) {
        const Class& one = of(place);
        if (!one.windowed || one.at.empty()) return;
        const auto slot = static_cast<int>(kernel_.slots.size());
        kernel_.slots.push_back(
            {one.inst.dtype, Residency::kRegisters, 0, one.inst.label + "_window", static_cast<int>(one.rows_back())});
        if (const std::int64_t bytes = copied_bytes(one); bytes > 0) {
            kernel_.slots.back().residency = Residency::kStages;
            kernel_.slots.back().shared_offset_bytes = ring_bytes_;
            ring_bytes_ += kernel_.slots.back().ring_rows() * bytes * kernel_.block_threads();
        }
        Inst keep{.kind = InstKind::kKeep, .dtype = one.inst.dtype, .operands = {values_.at({place.of, one.newest()})}};
        keep.index = slot;
        columns->push_back(std::move(keep));
        for (const std::int64_t shift : one.at) {
            if (shift == one.newest()) continue;
            Inst kept{.kind = InstKind::kKept, .id = kernel_.value_count++, .dtype = one.inst.dtype};
            kept.index = slot;
            kept.rows_back = static_cast<int>(one.newest() - shift);
            kept.label = fmt::format("{}_{}_back", one.inst.label, kept.rows_back);
            values_[{place.of, shift}] = kept.id;
            columns->push_back(std::move(kept));
        }
    }

    // What an asynchronous copy takes of a load, if there are such and one is enough. A register of a window moves on
    // with each row, before which what is on its way to it must have come: loads would be a row ahead, whatever was
    // asked for.
    std::int64_t copied_bytes(const Class& one) const {
        const auto bytes = vector_ * static_cast<std::int64_t>(size_bytes(one.inst.dtype));
        const bool copies = target_.backend == Backend::kCuda && (bytes == 4 || bytes == 8 || bytes == 16);
        return copies && is_column_load(one) ? bytes : 0;
    }

    Inst with_values(Inst root) const {
        for (ValueId& operand : root.operands) {
            const Place& place = places_.at(operand);
            operand = values_.at({place.of, place.shift});
        }
        return root;
    }

    Kernel kernel_;
    const Target& target_;
    std::map<ValueId, Place> places_;  // of the kernel as it was lowered
    std::vector<Class> classes_;       // what they use before them
    std::map<std::string, int> known_;
    std::int64_t vector_ = 1;
    std::int64_t ring_bytes_ = 0;
    std::vector<Place> roots_;  // what is stored, or summed over rows
    std::map<std::pair<int, std::int64_t>, ValueId> values_;
};

}  // namespace

Offer<Kernel> walk_rows(Kernel kernel, const Target& target) { return Walking(std::move(kernel), target).run(); }

}  // namespace rowjit
