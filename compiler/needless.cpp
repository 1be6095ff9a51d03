#include "compiler/needless.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <ranges>
#include <string_view>
#include <vector>

namespace rowjit {
namespace {

// Where something is needed: nowhere, where an axis has more positions than so many, or everywhere.
class Need {
  public:
    static Need nowhere() { return {}; }
    static Need everywhere() { return Need({-1, kAll}); }
    static Need above(const ExtentAbove& bound) { return Need(bound); }

    // Where either is; of two axes, everywhere.
    Need either(const Need& other) const {
        if (!bound_) return other;
        if (!other.bound_) return *this;
        if (bound_->axis != other.bound_->axis) return everywhere();
        return bound_->above < other.bound_->above ? *this : other;
    }

    // Where both are, or more than that.
    Need both(const Need& other) const {
        if (!bound_ || !other.bound_) return nowhere();
        if (is_everywhere()) return other;
        if (bound_->axis != other.bound_->axis) return *this;
        return bound_->above < other.bound_->above ? other : *this;
    }

    // What a launch asks; none where it is needed everywhere, as what nobody reads is taken to be.
    std::optional<ExtentAbove> bound() const { return is_everywhere() ? std::nullopt : bound_; }

  private:
    static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::min();

    Need() = default;
    explicit Need(const ExtentAbove& bound) : bound_(bound) {}
    bool is_everywhere() const { return bound_ && bound_->above == kAll; }

    std::optional<ExtentAbove> bound_;
};

// An output that is another tensor unless an axis has more positions than so many.
struct Choice {
    ExtentAbove where;
    std::string_view otherwise;
};

std::optional<ExtentAbove> extent_above(const GraphData& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (node.kind != NodeKind::kMap || node.op != Op::kGt) return std::nullopt;
    const Node& extent = graph.node(node.args[0]);
    const Node& bound = graph.node(node.args[1]);
    const bool known = extent.kind == NodeKind::kExtent && bound.kind == NodeKind::kConst && bound.dtype == Dtype::kI64;
    if (!known || graph.axis(extent.axis).extent != kRuntimeExtent) return std::nullopt;
    return ExtentAbove{extent.axis, static_cast<std::int64_t>(bound.value)};
}

std::optional<Choice> choice_of(const GraphData& group, const OutputInfo& output) {
    const Node& node = group.node(output.node);
    if (output.slots >= 0 || output.piece || node.kind != NodeKind::kMap || node.op != Op::kSelect) return std::nullopt;
    const std::optional<ExtentAbove> where = extent_above(group, node.args[0]);
    const Node& otherwise = group.node(node.args[2]);
    if (!where || otherwise.kind != NodeKind::kInput) return std::nullopt;
    return Choice{*where, otherwise.name};
}

class Needless {
  public:
    explicit Needless(Program* program)
        : program_(*program), readers_(program->tensors.size(), Need::nowhere()), in_place_(program->tensors.size()) {
        for (std::size_t i = 0; i < readers_.size(); ++i) {
            const ProgramTensor& tensor = program_.tensors[i];
            if (tensor.place != ProgramTensor::Place::kTemporary) readers_[i] = Need::everywhere();
            if (tensor.over >= 0) in_place_[i] = in_place_[static_cast<std::size_t>(tensor.over)] = true;
        }
        for (const ProductStep& product : program_.products) {
            for (const int tensor : {product.left, product.right, product.result, product.accumulator}) {
                if (tensor >= 0) need_of(tensor) = Need::everywhere();
            }
        }
    }

    void run() {
        for (const PlanStep& place : std::views::reverse(program_.order)) {
            if (place.kind == PlanStep::Kind::kKernel) visit(&program_.steps[place.index]);
        }
    }

  private:
    Need& need_of(int tensor) { return readers_[static_cast<std::size_t>(tensor)]; }

    static int tensor_of(const Step& step, std::string_view name) {
        const std::vector<KernelTensor>& tensors = step.kernel.tensors;
        const auto found = std::find_if(tensors.begin(), tensors.end(),
                                        [&](const KernelTensor& tensor) { return tensor.name == name; });
        return found == tensors.end() ? -1 : step.tensors[static_cast<std::size_t>(found - tensors.begin())];
    }

    // Whether whoever reads the one may read the other.
    bool are_alike(int one, int other) const {
        if (one < 0 || other < 0) return false;
        const ProgramTensor& a = program_.tensors[static_cast<std::size_t>(one)];
        const ProgramTensor& b = program_.tensors[static_cast<std::size_t>(other)];
        const bool temporary =
            a.place == ProgramTensor::Place::kTemporary && b.place == ProgramTensor::Place::kTemporary;
        return temporary && a.dtype == b.dtype && a.axes == b.axes && a.column_strides == b.column_strides &&
               !in_place_[static_cast<std::size_t>(one)] && !in_place_[static_cast<std::size_t>(other)];
    }

    // Its readers come behind it, and have been visited.
    void visit(Step* step) {
        Need needed = Need::nowhere();
        for (const OutputInfo& output : step->group.graph->outputs()) {
            const int stored = tensor_of(*step, output.tensor());
            if (stored < 0) return keep(step);
            const Need readers = need_of(stored);
            const std::optional<Choice> choice = choice_of(*step->group.graph, output);
            const int otherwise = choice ? tensor_of(*step, choice->otherwise) : -1;
            if (!are_alike(stored, otherwise)) {
                needed = needed.either(readers);
                continue;
            }
            needed = needed.either(readers.both(Need::above(choice->where)));
            need_of(otherwise) = need_of(otherwise).either(readers);
            step->stays.push_back({stored, otherwise});
        }
        step->needed = needed.bound();
        if (!step->needed) return keep(step);
        read(*step, needed);
    }

    void keep(Step* step) {
        step->stays.clear();
        read(*step, Need::everywhere());
    }

    void read(const Step& step, const Need& needed) {
        for (const int tensor : step.tensors) need_of(tensor) = need_of(tensor).either(needed);
    }

    Program& program_;
    std::vector<Need> readers_;   // by tensor: where a step that is launched reads it
    std::vector<bool> in_place_;  // by tensor: whether it shares its memory with another
};

}  // namespace

void find_needless(Program* program) {
    if (program->loops.empty()) Needless(program).run();
}

}  // namespace rowjit
