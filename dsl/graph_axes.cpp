// A graph's axes: declared, merged where operands meet, held to what emitted code can count, and what is asked of them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/fail.h"
#include "dsl/graph.h"

namespace rowjit {
namespace {

constexpr std::int64_t kMaxColumns = std::int64_t{1} << 31;  // column indices are 32-bit in emitted code

std::string labels(const GraphData& graph, const std::vector<AxisId>& axes, std::string_view between) {
    std::vector<std::string> found;
    for (const AxisId id : axes) found.push_back(graph.axis(id).label());
    return fmt::format("{}", fmt::join(found, between));
}

}  // namespace

AxisId GraphData::add_slots_axis(std::string_view name) {
    const AxisId id = add_row_axis(name, kRuntimeExtent);
    axes_[static_cast<std::size_t>(id)].is_slots = true;
    return id;
}

AxisId GraphData::add_blocks_axis(std::string_view name, std::int64_t blocks) {
    const AxisId id = add_row_axis(name, kRuntimeExtent);
    axes_[static_cast<std::size_t>(id)].blocks = blocks;
    return id;
}

std::string GraphData::unused_axis_name(std::string wanted) const {
    const auto taken = [&] {
        return std::ranges::any_of(axes_, [&](const AxisInfo& info) { return info.name == wanted; });
    };
    while (taken()) wanted += "_";
    return wanted;
}

AxisId GraphData::add_row_axis(std::string_view name, std::int64_t extent) {
    if (!is_identifier(name)) fail(ErrorCode::kInvalidGraph, "row axis '{}': the name must be an identifier", name);
    if (extent != kRuntimeExtent && extent <= 0) {
        fail(ErrorCode::kInvalidGraph, "row axis '{}': a static extent must be positive, not {}", name, extent);
    }
    for (std::size_t i = 0; i < axes_.size(); ++i) {
        if (axes_[i].name != name) continue;
        if (axes_[i].is_row && axes_[i].extent == extent && axes_[i].follows.empty()) return static_cast<AxisId>(i);
        fail(ErrorCode::kInvalidGraph, "row axis '{}' is already declared differently; give it another name", name);
    }
    axes_.push_back({std::string(name), extent, true});
    return static_cast<AxisId>(axes_.size() - 1);
}

AxisId GraphData::add_row_axis_like(std::string_view name, std::vector<AxisId> like, std::int64_t more) {
    if (like.empty()) fail(ErrorCode::kInvalidGraph, "row axis '{}': it follows no axis; give one or several", name);
    for (const AxisId id : like) {
        if (axis(id).is_row) continue;
        fail(ErrorCode::kInvalidGraph, "row axis '{}': {} is a column axis; a row axis follows row axes", name,
             axis(id).label());
    }
    if (more < 0 || more >= kMaxColumns) {
        fail(ErrorCode::kInvalidGraph, "row axis '{}': {} positions more than {}; give 0 … 2^31 − 1", name, more,
             label_of_product(like));
    }
    const auto is_static = [&](AxisId id) { return axis(id).extent != kRuntimeExtent; };
    if (std::ranges::all_of(like, is_static)) {
        std::int64_t extent = 1;
        for (const AxisId id : like) {
            if (__builtin_mul_overflow(extent, axis(id).extent, &extent))
                fail(ErrorCode::kInvalidGraph, "row axis '{}': {} are 2^63 positions or more", name,
                     label_of_product(like));
        }
        return add_row_axis(name, extent + more);
    }
    if (like.size() == 1) more += axis(like[0]).more;
    like = roots(like);
    for (std::size_t i = 0; i < axes_.size(); ++i) {
        if (axes_[i].name == name && axes_[i].follows == like && axes_[i].more == more) return static_cast<AxisId>(i);
    }
    const auto taken = static_cast<AxisId>(axes_.size());
    const AxisId id = add_row_axis(name, kRuntimeExtent);
    if (id != taken) {
        fail(ErrorCode::kInvalidGraph, "row axis '{}' is already declared differently; give it another name", name);
    }
    axes_.back().follows = std::move(like);
    axes_.back().more = more;
    return id;
}

AxisId GraphData::add_column_axis(std::string_view name, std::int64_t extent) {
    if (!name.empty() && !is_identifier(name)) {
        fail(ErrorCode::kInvalidGraph, "column axis '{}': the name must be an identifier", name);
    }
    if (extent <= 0 || extent >= kMaxColumns) {
        const std::string axis = name.empty() ? "a column axis" : fmt::format("column axis '{}'", name);
        fail(ErrorCode::kInvalidGraph, "{}: the extent must be in 1 … 2^31 − 1, not {}", axis, extent);
    }
    for (std::size_t i = 0; i < axes_.size(); ++i) {
        if (axes_[i].name != name || (name.empty() && axes_[i].extent != extent)) continue;
        if (!axes_[i].is_row && axes_[i].extent == extent) return static_cast<AxisId>(i);
        fail(ErrorCode::kInvalidGraph,
             "column axis '{}' is already declared with extent {}, not {}; give it another name", name, axes_[i].extent,
             extent);
    }
    axes_.push_back({std::string(name), extent, false});
    return static_cast<AxisId>(axes_.size() - 1);
}

std::vector<AxisId> GraphData::merge_axes(std::string_view what, const std::vector<NodeId>& args) const {
    std::vector<AxisId> merged;
    for (const NodeId arg : args) {
        const std::vector<AxisId>& axes = node(arg).axes;
        auto last_shared = merged.begin();
        for (const AxisId id : axes) {
            const auto found = std::find(merged.begin(), merged.end(), id);
            if (found == merged.end()) continue;
            if (found < last_shared) {
                fail(ErrorCode::kInvalidGraph,
                     "{}: {} orders its axes differently from [{}]; declare them in one order", what, describe(arg),
                     describe_axes(merged));
            }
            last_shared = found;
        }
        // Each axis the merge lacks goes in front of the next one shared, so [tokens, d] joins [tokens, heads, d] as
        // the latter, at the end when none is; but behind the last one shared, in front of what is behind its place.
        const std::vector<AxisId> shared = merged;
        AxisId next_shared = -1;
        for (std::size_t i = axes.size(); i-- > 0;) {
            if (!contains(merged, axes[i])) {
                auto from = merged.begin();
                for (std::size_t j = i; j-- > 0 && from == merged.begin();) {
                    if (contains(shared, axes[j])) from = std::next(std::ranges::find(merged, axes[j]));
                }
                const auto next = std::ranges::find(merged, next_shared);
                const int place = axis(axes[i]).place;
                const auto behind = [&](AxisId other) { return place > 0 && axis(other).place > place; };
                merged.insert(std::find_if(from, next, behind), axes[i]);
            }
            next_shared = axes[i];
        }
        order_by_space(&merged);
    }
    require_few_columns(what, merged);
    return merged;
}

void GraphData::order_by_space(std::vector<AxisId>* axes) const {
    const auto place = [&](AxisId id) {
        const AxisInfo& info = axis(id);
        return info.is_promoted ? std::pair(1, info.place) : std::pair(info.is_row ? 0 : 2, 0);
    };
    std::ranges::stable_sort(*axes, {}, place);
}

void GraphData::require_few_columns(std::string_view what, const std::vector<AxisId>& axes) const {
    std::int64_t columns = 1;
    for (const AxisId id : axes) {
        if (axis(id).is_row) continue;
        // Both factors are below 2^31.
        columns *= axis(id).extent;
        if (columns < kMaxColumns) continue;
        fail(ErrorCode::kInvalidGraph, "{}: [{}] has 2^31 columns a row or more; fewer are supported", what,
             describe_axes(axes));
    }
}

void GraphData::require_column_strides(std::string_view what, std::string_view name,
                                       const std::vector<std::int64_t>& strides, const Node& node,
                                       std::int64_t least) const {
    if (strides.empty()) return;
    const std::size_t columns = column_axes(node).size();
    if (strides.size() != columns) {
        fail(ErrorCode::kInvalidGraph, "{} '{}': {} column strides for {} column axes", what, name, strides.size(),
             columns);
    }
    for (const std::int64_t stride : strides) {
        if (stride >= least && stride < kMaxColumns) continue;
        fail(ErrorCode::kInvalidGraph, "{} '{}': column stride {}; give {} … 2^31 − 1", what, name, stride, least);
    }
}

bool GraphData::is_longer(AxisId longer, AxisId than, std::int64_t more) const {
    const AxisInfo& a = axis(longer);
    const AxisInfo& b = axis(than);
    if (a.extent != kRuntimeExtent || b.extent != kRuntimeExtent) {
        return a.extent != kRuntimeExtent && b.extent != kRuntimeExtent && a.extent == b.extent + more;
    }
    return roots({longer}) == roots({than}) && a.more == b.more + more;
}

// The axes whose product that of `like` is, but for what the only one of them has more: such as a launch gives extents
// for, as far as one has no more than their product.
std::vector<AxisId> GraphData::roots(const std::vector<AxisId>& like) const {
    std::vector<AxisId> found;
    for (const AxisId id : like) {
        const AxisInfo& info = axis(id);
        if (info.follows.empty() || (like.size() > 1 && info.more > 0)) {
            found.push_back(id);
        } else {
            found.insert(found.end(), info.follows.begin(), info.follows.end());
        }
    }
    return found;
}

std::string GraphData::label_of_product(const std::vector<AxisId>& axes) const { return labels(*this, axes, " * "); }

std::vector<AxisId> GraphData::row_axes(const Node& node) const {
    std::vector<AxisId> found;
    std::copy_if(node.axes.begin(), node.axes.end(), std::back_inserter(found),
                 [&](AxisId id) { return axis(id).is_row; });
    return found;
}

std::vector<AxisId> GraphData::column_axes(const Node& node) const {
    std::vector<AxisId> found;
    std::copy_if(node.axes.begin(), node.axes.end(), std::back_inserter(found),
                 [&](AxisId id) { return !axis(id).is_row; });
    return found;
}

std::int64_t GraphData::positions(const std::vector<AxisId>& axes, std::int64_t at_run_time) const {
    std::int64_t count = 1;
    for (const AxisId id : axes) count *= axis(id).extent == kRuntimeExtent ? at_run_time : axis(id).extent;
    return count;
}

std::int64_t GraphData::column_count(const Node& node) const {
    std::int64_t count = 1;
    for (const AxisId id : column_axes(node)) count *= axis(id).extent;
    return count;
}

bool GraphData::same_rows(AxisId a, AxisId b) const {
    return axis(a).is_row && axis(b).is_row && roots({a}) == roots({b}) && axis(a).more == axis(b).more;
}

std::string GraphData::describe_axes(const std::vector<AxisId>& axes) const { return labels(*this, axes, ", "); }

}  // namespace rowjit
