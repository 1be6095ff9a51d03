#include "compiler/plan/chunk_costs.h"

#include <algorithm>

#include "base/dtype.h"

namespace rowjit {
namespace {

// The tiles of a large bf16 product, and what a multiprocessor does with them: an H200 reaches about 690 TFLOP/s.
constexpr std::int64_t kTileRows = ChunkCosts::kStepRows;
constexpr std::int64_t kTileColumns = 128;
constexpr double kFlopsPerSmUs = 5.2e6;
constexpr double kCpuFlopsPerThreadUs = 5e4;
constexpr double kLaunchUs = 3;
constexpr std::int64_t kMostRows = 16384;
// A larger chunk is worth its memory when it saves more than this.
constexpr double kWorthwhile = 0.005;
// As is a chunk in the workspace, beside accumulators that lie partly in their results' memory, in place of one there.
constexpr double kWorthWorkspace = 0.01;

// What is of one chunk, where the caller gives no limit: 2048 rows of 151936 bf16, or twice as many where accumulators
// lie partly in their results' memory. For products of such a size cuBLASLt asks for no workspace.
constexpr std::int64_t kChunkBytes = std::int64_t{600} << 20;
// Where chunks add nothing up and are there for memory alone: on an H200 two of a gated MLP, 8192 × 4096 × 14336, took
// 2 % longer than its 672 MiB at once.
constexpr std::int64_t kApartBytes = std::int64_t{1} << 30;
// What a library asks for at most.
constexpr std::int64_t kProductReserveBytes = std::int64_t{33} << 20;
// In low memory, where the caller gives no limit; again without what a library may ask for.
constexpr std::int64_t kLowBytes = std::int64_t{64} << 20;
// A part of columns, to the nearest block. On an H200 cross-entropy of 16384 × 2048 × 151936 took 63.9 and 64.9 ms in
// parts of 128 MiB where it took 65.2 and 64.7 in such of 64, which an L2 cache of 50 MiB does not keep either.
constexpr std::int64_t kPartBytes = std::int64_t{128} << 20;
// What adding to a sum takes of the time in which it is read and written, on a GPU: the rest is hidden behind other
// tiles. On an H200 twice the chunks of 2048 rows took 0.7 to 3.7 ms more than of 4096, where that is 2.1 to 7.8 ms.
constexpr double kShownOfSums = 0.35;
// Of a launch, where columns are divided and rows are not.
constexpr double kPlanningRows = 8192;

struct Sides {
    double m = 1;
    double n = 1;
    double k = 1;
    bool rows_contracted = false;
    double sum_bytes = 0;  // of what a chunk adds to
};

class Model {
  public:
    Model(const Plan& plan, const ChunkLoop& loop, const Target& target) : plan_(plan), loop_(loop), target_(target) {
        for (std::size_t i = loop.first; i < loop.end; ++i) {
            if (plan.steps[i].kind == PlanStep::Kind::kProduct)
                sides_.push_back(sides(plan.products[plan.steps[i].index]));
        }
        steps_ = static_cast<double>(loop.end - loop.first);
        for (const Sides& product : sides_)
            rows_of_position_ = std::max(rows_of_position_, product.rows_contracted ? product.k : product.m);
    }

    bool adds_up() const {
        return std::any_of(sides_.begin(), sides_.end(), [](const Sides& product) { return product.rows_contracted; });
    }

    double chunk_us(std::int64_t rows) const {
        double us = kLaunchUs * steps_;
        const double shown = target_.is_gpu() ? kShownOfSums : 1;
        for (Sides product : sides_) {
            (product.rows_contracted ? product.k : product.m) *= static_cast<double>(rows) / rows_of_position_;
            us += product_us(product) + shown * 2 * product.sum_bytes / (target_.bandwidth_gbps * 1e3);
        }
        return us;
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

    // Positions of the loop's axis count as one here: chunk_us multiplies them in.
    Sides sides(const Product& product) const {
        const bool of_columns = loop_.axis == plan_.division.blocks;
        const auto extent = [&](AxisId axis) {
            const bool all_rows = of_columns && axis != loop_.axis && plan_.graph->axis(axis).is_given();
            const auto known = static_cast<double>(std::max<std::int64_t>(1, plan_.graph->axis(axis).extent));
            return all_rows ? kPlanningRows : known;
        };
        Sides found;
        const Tensor left = tensor(product.left);
        const Tensor right = tensor(product.right);
        for (const AxisId axis : left.axes) (contains(product.contracted, axis) ? found.k : found.m) *= extent(axis);
        for (const AxisId axis : right.axes) found.n *= contains(product.contracted, axis) ? 1 : extent(axis);
        found.rows_contracted = contains(product.contracted, loop_.axis);
        if (!found.rows_contracted && !contains(left.axes, loop_.axis)) std::swap(found.m, found.n);
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
    const ChunkLoop& loop_;
    const Target& target_;
    std::vector<Sides> sides_;
    double steps_ = 0;
    double rows_of_position_ = 1;  // of those that are known now
};

}  // namespace

// Between two rows of the table it is the larger one's: a tile that is begun takes as long as a full one.
double ChunkCosts::chunk_us(std::int64_t rows) const {
    const std::int64_t last = std::ssize(predicted_us) - 1;
    const std::int64_t step = (rows + kStepRows - 1) / kStepRows - 1;
    if (step <= last) return rows == 0 ? 0 : predicted_us[static_cast<std::size_t>(step)];
    return predicted_us.back() * static_cast<double>(rows) / static_cast<double>(kStepRows * (last + 1));
}

// In chunks of `each`.
double ChunkCosts::total_us(std::int64_t each, std::int64_t positions, std::int64_t position_rows) const {
    return static_cast<double>(positions / each) * chunk_us(each * position_rows) +
           chunk_us(positions % each * position_rows);
}

std::int64_t ChunkCosts::choose_positions(std::int64_t fitting, std::int64_t positions,
                                          std::int64_t position_rows) const {
    if (forced_rows > 0) return std::max<std::int64_t>(1, forced_rows / position_rows);
    const std::int64_t step = std::max<std::int64_t>(1, kStepRows / position_rows);
    const std::int64_t most = std::min({fitting, positions, std::max(step, kMostRows / position_rows)});
    std::int64_t best = std::clamp<std::int64_t>(most, 1, step);
    double best_us = 0;
    for (std::int64_t each = best; each <= most; each += step) {
        const double us = total_us(each, positions, position_rows);
        if (each > best && us >= best_us * (1 - kWorthwhile)) continue;
        best_us = us;
        best = each;
    }
    return best;
}

std::int64_t ChunkCosts::choose_blocks(std::int64_t fitting, std::int64_t blocks, std::int64_t block_columns,
                                       std::int64_t block_bytes) const {
    const std::int64_t typical = (kPartBytes + block_bytes / 2) / block_bytes;
    return std::min(fitting, choose_positions(std::min(fitting, typical), blocks, block_columns));
}

ChunkChoice ChunkCosts::divide(std::int64_t positions, const ChunkBytes& bytes) const noexcept {
    const bool limited = limit_bytes > 0;
    const std::int64_t left = limit_bytes - kProductReserveBytes - bytes.others;
    const std::int64_t of_chunk = adds_up ? kChunkBytes : kApartBytes;
    const std::int64_t beside_sums = limited ? left - bytes.accumulators : of_chunk;
    ChunkChoice choice;
    choice.allowed_bytes = limited ? left : bytes.accumulators + of_chunk;
    choice.positions = std::max<std::int64_t>(1, positions);
    const std::int64_t of_position = std::max<std::int64_t>(1, bytes.of_position);
    const std::int64_t each = of_position + bytes.beside_position;
    const auto choose = [&](std::int64_t most) {
        return choose_positions(most, choice.positions, bytes.position_rows);
    };
    const auto us = [&](std::int64_t chosen) { return total_us(chosen, choice.positions, bytes.position_rows); };
    // Beside a chunk in a lender's memory all of the accumulators are in the workspace.
    const bool sums_fit = bytes.shared == 0 || beside_sums >= 0;
    std::int64_t in_lender = bytes.lent / of_position;
    if (bytes.beside_position > 0)
        in_lender = std::min(in_lender, std::max<std::int64_t>(0, beside_sums) / bytes.beside_position);
    const std::int64_t in_workspace = std::max<std::int64_t>(0, beside_sums + bytes.shared) / each;
    const std::int64_t of_lender = choose(in_lender);
    const bool lent = sums_fit && of_lender * of_position <= bytes.lent &&
                      us(of_lender) <= us(choose(in_workspace)) * (1 + kWorthWorkspace);
    std::int64_t fitting = in_workspace;
    if (lent) fitting = bytes.lent_to_several ? std::min(in_lender, (positions + 1) / 2) : in_lender;
    if (lent && !bytes.lent_to_several) choice.allowed_bytes = std::max(choice.allowed_bytes, in_lender * each);
    if (forced_rows > 0 || positions * each > choice.allowed_bytes)
        choice.positions = std::min(choice.positions, choose(fitting));
    choice.chunks = std::max<std::int64_t>(1, (positions + choice.positions - 1) / choice.positions);
    choice.lent = lent && choice.positions * of_position <= bytes.lent && (choice.chunks > 1 || !bytes.lent_to_several);
    choice.shared = !choice.lent && choice.chunks > 1 && bytes.shared > 0;
    return choice;
}

ChunkCosts chunk_costs(const Plan& plan, const ChunkLoop& loop, const Target& target, const ChunkOptions& options) {
    const bool of_columns = loop.axis == plan.division.blocks;
    ChunkCosts costs{of_columns ? options.part_columns : options.chunk_rows, options.workspace_limit_bytes};
    if (plan.division.blocks >= 0 && costs.limit_bytes == 0) costs.limit_bytes = kLowBytes + kProductReserveBytes;
    const Model model(plan, loop, target);
    costs.adds_up = model.adds_up();
    for (std::int64_t rows = ChunkCosts::kStepRows; rows <= kMostRows; rows += ChunkCosts::kStepRows)
        costs.predicted_us.push_back(model.chunk_us(rows));
    return costs;
}

}  // namespace rowjit
