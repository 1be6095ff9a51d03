#include "compiler/plan/chunk_costs.h"

#include <algorithm>

#include "base/dtype.h"

namespace rowjit {
namespace {

// The tiles of a large bf16 product, and what a multiprocessor does with them: an H200 reaches about 690 TFLOP/s.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileColumns = 256;
constexpr double kFlopsPerSmUs = 5.2e6;
constexpr double kCpuFlopsPerThreadUs = 5e4;
constexpr double kLaunchUs = 3;
constexpr std::int64_t kMostRows = 16384;
// A larger chunk is worth its memory when it saves more than this.
constexpr double kWorthwhile = 0.005;

// What is of one chunk, where the caller gives no limit: with the products' own workspace 600 MiB.
constexpr std::int64_t kChunkBytes = std::int64_t{560} << 20;
constexpr std::int64_t kProductReserveBytes = std::int64_t{33} << 20;

struct Sides {
    double m = 1;
    double n = 1;
    double k = 1;
    bool rows_contracted = false;
    double sum_bytes = 0;  // of what a chunk adds to
};

class Model {
  public:
    Model(const Plan& plan, const Target& target) : plan_(plan), target_(target) {
        for (std::size_t i = plan.loop->first; i < plan.loop->end; ++i) {
            if (plan.steps[i].kind == PlanStep::Kind::kProduct)
                sides_.push_back(sides(plan.products[plan.steps[i].index]));
        }
        steps_ = static_cast<double>(plan.loop->end - plan.loop->first);
    }

    double us_per_row(std::int64_t rows) const {
        double us = kLaunchUs * steps_;
        for (Sides product : sides_) {
            (product.rows_contracted ? product.k : product.m) *= static_cast<double>(rows);
            us += product_us(product) + 2 * product.sum_bytes / (target_.bandwidth_gbps * 1e3);
        }
        return us / static_cast<double>(rows);
    }

  private:
    struct Tensor {
        Dtype dtype = Dtype::kF32;
        std::vector<AxisId> axes;
    };

    Tensor tensor(const std::string& name) const {
        for (const Temporary& one : plan_.temporaries) {
            if (one.name == name) return {one.dtype, one.axes};
        }
        const GraphData& graph = *plan_.graph;
        for (const OutputInfo& output : graph.outputs()) {
            if (output.name == name) return {graph.node(output.node).dtype, graph.node(output.node).axes};
        }
        const Node& node = graph.node(*graph.find_input(name));
        return {node.dtype, node.axes};
    }

    // Run-time rows count as one here: us_per_row multiplies them in.
    Sides sides(const Product& product) const {
        const auto contains = [](const std::vector<AxisId>& axes, AxisId axis) {
            return std::find(axes.begin(), axes.end(), axis) != axes.end();
        };
        const auto extent = [&](AxisId axis) {
            return static_cast<double>(std::max<std::int64_t>(1, plan_.graph->axis(axis).extent));
        };
        Sides found;
        const Tensor left = tensor(product.left);
        const Tensor right = tensor(product.right);
        for (const AxisId axis : left.axes) (contains(product.contracted, axis) ? found.k : found.m) *= extent(axis);
        for (const AxisId axis : right.axes) found.n *= contains(product.contracted, axis) ? 1 : extent(axis);
        found.rows_contracted = contains(product.contracted, plan_.loop->axis);
        if (!found.rows_contracted && !contains(left.axes, plan_.loop->axis)) std::swap(found.m, found.n);
        const Tensor sum = tensor(product.accumulator.empty() ? product.result : product.accumulator);
        if (found.rows_contracted) found.sum_bytes = found.m * found.n * static_cast<double>(size_bytes(sum.dtype));
        return found;
    }

    // In waves of tiles: the last wave takes as long as a full one.
    double product_us(const Sides& product) const {
        const double flops = 2 * product.m * product.n * product.k;
        if (!target_.is_gpu()) return flops / (kCpuFlopsPerThreadUs * target_.sm_count);
        const auto up = [](double value, std::int64_t unit) {
            return (static_cast<std::int64_t>(value) + unit - 1) / unit;
        };
        const std::int64_t tiles = up(product.m, kTileRows) * up(product.n, kTileColumns);
        const std::int64_t waves = up(static_cast<double>(tiles), target_.sm_count);
        return static_cast<double>(waves) * 2 * kTileRows * kTileColumns * product.k / kFlopsPerSmUs;
    }

    const Plan& plan_;
    const Target& target_;
    std::vector<Sides> sides_;
    double steps_ = 0;
};

}  // namespace

std::int64_t ChunkCosts::choose(std::int64_t fitting) const {
    if (forced_rows > 0) return forced_rows;
    std::int64_t best_rows = std::clamp<std::int64_t>(fitting, 1, kStepRows);
    double best_us = us_per_row[0];
    for (std::size_t i = 1; i < us_per_row.size(); ++i) {
        const std::int64_t rows = kStepRows * static_cast<std::int64_t>(i + 1);
        if (rows > fitting) break;
        if (us_per_row[i] >= best_us * (1 - kWorthwhile)) continue;
        best_us = us_per_row[i];
        best_rows = rows;
    }
    return best_rows;
}

ChunkChoice ChunkCosts::divide(std::int64_t positions, const ChunkBytes& bytes) const noexcept {
    const bool limited = limit_bytes > 0;
    const std::int64_t left = limit_bytes - kProductReserveBytes - bytes.others;
    const std::int64_t for_several = limited ? left - bytes.accumulators : kChunkBytes;
    ChunkChoice choice;
    choice.allowed_bytes = limited ? left : bytes.accumulators + kChunkBytes;
    choice.positions = std::max<std::int64_t>(1, positions);
    if (forced_rows > 0 || positions * bytes.of_position > choice.allowed_bytes) {
        const std::int64_t fitting =
            std::max<std::int64_t>(1, for_several / std::max<std::int64_t>(1, bytes.of_position));
        const std::int64_t rows = choose(fitting * bytes.position_rows);
        choice.positions = std::clamp<std::int64_t>(rows / bytes.position_rows, 1, choice.positions);
    }
    choice.chunks = std::max<std::int64_t>(1, (positions + choice.positions - 1) / choice.positions);
    return choice;
}

ChunkCosts chunk_costs(const Plan& plan, const Target& target, const ChunkOptions& options) {
    ChunkCosts costs{options.chunk_rows, options.workspace_limit_bytes, {}};
    const Model model(plan, target);
    for (std::int64_t rows = ChunkCosts::kStepRows; rows <= kMostRows; rows += ChunkCosts::kStepRows)
        costs.us_per_row.push_back(model.us_per_row(rows));
    return costs;
}

}  // namespace rowjit
