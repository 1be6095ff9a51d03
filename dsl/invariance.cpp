#include "dsl/invariance.h"

#include <algorithm>
#include <cmath>

namespace rowjit {
namespace {

struct Dependence {
    enum class Kind : std::uint8_t { kNone, kAdds, kScales, kOther };  // g, g + k·m, g · e^(k·m), any function
    Kind kind = Kind::kNone;
    double k = 0;

    bool operator==(const Dependence&) const = default;
    bool adds() const { return kind == Kind::kNone || kind == Kind::kAdds; }
    bool scales() const { return kind == Kind::kNone || kind == Kind::kScales; }
};

constexpr Dependence kOther{Dependence::Kind::kOther, 0};

Dependence adding(double k) { return k == 0 ? Dependence{} : Dependence{Dependence::Kind::kAdds, k}; }
Dependence scaling(double k) { return k == 0 ? Dependence{} : Dependence{Dependence::Kind::kScales, k}; }

// How every value depends on one.
class Dependences {
  public:
    Dependences(const GraphData& graph, NodeId variable)
        : graph_(graph), variable_(variable), of_(static_cast<std::size_t>(graph.size())) {
        at(variable) = adding(1);
        for (NodeId id = variable + 1; id < graph.size(); ++id) {
            const std::vector<NodeId>& args = graph.node(id).args;
            if (std::any_of(args.begin(), args.end(), [&](NodeId arg) { return depends(arg); })) at(id) = derived(id);
        }
    }

    bool depends(NodeId id) const { return of_[static_cast<std::size_t>(id)].kind != Dependence::Kind::kNone; }

  private:
    Dependence& at(NodeId id) { return of_[static_cast<std::size_t>(id)]; }
    const Dependence& at(NodeId id) const { return of_[static_cast<std::size_t>(id)]; }

    Dependence derived(NodeId id) const {
        const Node& node = graph_.node(id);
        switch (node.kind) {
            case NodeKind::kMap: return map(node);
            case NodeKind::kCast: return is_float(node.dtype) ? at(node.args[0]) : kOther;
            case NodeKind::kReduce: return sum(node);
            case NodeKind::kIndex: return index(node);
            default: return kOther;
        }
    }

    Dependence map(const Node& node) const {
        const auto operand = [&](std::size_t i) { return at(node.args[i]); };
        const Dependence a = operand(0);
        switch (node.op) {
            case Op::kDetach: return {};  // nothing flows back through it
            case Op::kNeg: return a.adds() ? adding(-a.k) : a;
            case Op::kAbs: return a.scales() ? a : kOther;
            case Op::kSqrt: return a.scales() ? scaling(a.k / 2) : kOther;
            case Op::kRsqrt: return a.scales() ? scaling(-a.k / 2) : kOther;
            case Op::kExp: return a.adds() ? scaling(a.k) : kOther;
            case Op::kLog: return a.scales() ? adding(a.k) : kOther;
            case Op::kAdd: return total(node.args[0], a, node.args[1], operand(1), 1);
            case Op::kSub: return total(node.args[0], a, node.args[1], operand(1), -1);
            case Op::kMul: return product(node.args[0], node.args[1]);
            case Op::kDiv: return quotient(node.args[0], node.args[1]);
            case Op::kFma: return total(-1, product(node.args[0], node.args[1]), node.args[2], operand(2), 1);
            case Op::kSelect:
                return depends(node.args[0]) ? kOther : either(node.args[1], node.args[2], operand(1), operand(2));
            default: return kOther;
        }
    }

    // Of a + sign·b, where `first` and `second` are those nodes, or −1.
    Dependence total(NodeId first, const Dependence& a, NodeId second, const Dependence& b, double sign) const {
        if (a.adds() && b.adds()) return adding(a.k + sign * b.k);
        return same_scale(first, a, second, b);
    }

    // 0 is 0 · e^(k·m) of every k.
    Dependence same_scale(NodeId first, const Dependence& a, NodeId second, const Dependence& b) const {
        if (!a.scales() || !b.scales()) return kOther;
        if (a == b || is_zero(second)) return a;
        return is_zero(first) ? b : kOther;
    }

    Dependence either(NodeId first, NodeId second, const Dependence& a, const Dependence& b) const {
        if (a == b) return a;
        if (a.adds() && b.adds()) return is_infinite(first) ? b : is_infinite(second) ? a : kOther;
        return same_scale(first, a, second, b);
    }

    Dependence product(NodeId first, NodeId second) const {
        const Dependence a = at(first);
        const Dependence b = at(second);
        if (a.scales() && b.scales()) return scaling(a.k + b.k);
        const Node& left = graph_.node(first);
        const Node& right = graph_.node(second);
        if (a.adds() && right.kind == NodeKind::kConst) return adding(a.k * right.value);
        if (b.adds() && left.kind == NodeKind::kConst) return adding(b.k * left.value);
        return kOther;
    }

    Dependence quotient(NodeId first, NodeId second) const {
        const Dependence a = at(first);
        const Dependence b = at(second);
        if (a.scales() && b.scales()) return scaling(a.k - b.k);
        const Node& right = graph_.node(second);
        return a.adds() && right.kind == NodeKind::kConst ? adding(a.k / right.value) : kOther;
    }

    // Over places that share the variable.
    Dependence sum(const Node& node) const {
        const std::vector<AxisId>& own = graph_.node(variable_).axes;
        const bool shared =
            std::none_of(node.reduced.begin(), node.reduced.end(), [&](AxisId axis) { return contains(own, axis); });
        const Dependence term = at(node.args[0]);
        return shared && node.monoid == Monoid::kSum && term.scales() ? term : kOther;
    }

    // At the variable's own place.
    Dependence index(const Node& node) const {
        const Node& source = graph_.node(node.args[0]);
        for (std::size_t i = 1; i < node.args.size(); ++i) {
            if (depends(node.args[i])) return kOther;
        }
        for (const AxisId axis : graph_.node(variable_).axes) {
            const auto found = std::find(source.axes.begin(), source.axes.end(), axis);
            if (found == source.axes.end()) return kOther;  // of another place already
            const auto place = static_cast<std::size_t>(found - source.axes.begin());
            if (!node.coords[place].is_axis(Axis{axis})) return kOther;
        }
        return at(node.args[0]);
    }

    bool is_zero(NodeId id) const {
        return id >= 0 && graph_.node(id).kind == NodeKind::kConst && graph_.node(id).value == 0;
    }
    bool is_infinite(NodeId id) const {
        return id >= 0 && graph_.node(id).kind == NodeKind::kConst && std::isinf(graph_.node(id).value);
    }

    const GraphData& graph_;
    const NodeId variable_;
    std::vector<Dependence> of_;
};

bool is_extremum(const Node& node) {
    if (node.kind == NodeKind::kReduce) return node.monoid == Monoid::kMax || node.monoid == Monoid::kMin;
    return node.kind == NodeKind::kMap && (node.op == Op::kMax || node.op == Op::kMin);
}

}  // namespace

std::vector<bool> find_invariant(const GraphData& graph, const std::vector<NodeId>& of) {
    std::vector<bool> subtracted(static_cast<std::size_t>(graph.size()), false);
    for (NodeId id = 0; id < graph.size(); ++id) {
        const Node& node = graph.node(id);
        if (node.kind != NodeKind::kMap || (node.op != Op::kSub && node.op != Op::kNeg)) continue;
        const NodeId what = node.args.back();
        subtracted[static_cast<std::size_t>(what)] = is_extremum(graph.node(what)) && graph.node(what).state < 0;
    }
    std::vector<bool> invariant(static_cast<std::size_t>(graph.size()), false);
    for (NodeId id = 0; id < graph.size(); ++id) {
        if (!subtracted[static_cast<std::size_t>(id)]) continue;
        const Dependences dependences(graph, id);
        invariant[static_cast<std::size_t>(id)] =
            std::none_of(of.begin(), of.end(), [&](NodeId output) { return dependences.depends(output); });
    }
    return invariant;
}

}  // namespace rowjit
