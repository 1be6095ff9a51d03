#include "compiler/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/fail.h"
#include "base/floor_div.h"
#include "compiler/needless.h"
#include "compiler/neighbours.h"
#include "compiler/own_products.h"
#include "compiler/passes/passes.h"
#include "compiler/plan/choose_plan.h"
#include "compiler/plan/column_blocks.h"
#include "compiler/plan/tile_sums.h"
#include "compiler/schedule/lower.h"

namespace rowjit {
namespace {

// Kernel passes, top to bottom. What a pass needs, some row above gives.
struct Pass {
    std::string_view name;
    std::string_view needs;
    std::string_view gives;
    Kernel (*run)(Kernel, const Target&);
};

constexpr std::array kPasses = {
    Pass{"precision", "loops", "arithmetic that may be less exact, or fused", spend_precision},
    Pass{"extrema", "loops", "extrema of what is scaled, before it is", scale_extrema},
    Pass{"index", "loops", "accesses and alignment", index_accesses},
    Pass{"barriers", "loops", "scratch regions, barriers, shared bytes", place_barriers},
    Pass{"stages", "accesses and shared bytes", "places of what is copied ahead", place_stages},
    Pass{"pieces", "places of what is copied ahead", "a loop for each piece of a row in its stage", take_pieces_apart},
    Pass{"refills", "places of what is copied ahead", "loops that have a stage filled again", refill_stages},
    Pass{"tables", "accesses", "functions of weights, once for all rows", keep_table_functions},
    Pass{"held", "accesses", "loads made once for all rows", hold_shared_loads},
    Pass{"packed", "accesses", "what two lanes share a word of", pack_lanes},
    Pass{"conditions", "packed lanes", "what all lanes of a vector ask alike", share_conditions},
};

constexpr std::int64_t kMaxGrid = 2147483647;  // blocks in x, both vendors; kernels loop when there are more rows

int find_scalar(const Program& program, std::string_view name) {
    for (std::size_t i = 0; i < program.scalars.size(); ++i) {
        if (program.scalars[i].name == name) return static_cast<int>(i);
    }
    RJ_CHECK(false, "compile: no scalar '{}'", name);
}

std::vector<std::int64_t> declared_strides(const GraphData& graph, const Node& node,
                                           const std::vector<std::int64_t>& given) {
    if (!given.empty()) return given;
    std::vector<std::int64_t> extents;
    for (const AxisId axis : graph.column_axes(node)) extents.push_back(graph.axis(axis).extent);
    return contiguous_strides(extents);
}

// The program's arguments, from the graph as the user declared it: an input that canonicalisation found unused is still
// one.
void declare_arguments(const GraphData& graph, const Plan& plan, Program* program) {
    using Place = ProgramTensor::Place;
    for (NodeId id = 0; id < graph.size(); ++id) {
        const Node& node = graph.node(id);
        if (node.kind == NodeKind::kInput) {
            program->tensors.push_back(
                {Place::kInput, node.name, node.dtype, node.axes, declared_strides(graph, node, node.column_strides)});
        }
        if (node.kind == NodeKind::kScalar) program->scalars.push_back({node.name, node.dtype, node.value});
    }
    for (const OutputInfo& output : graph.outputs()) {
        const Node& node = graph.node(output.node);
        program->tensors.push_back({Place::kOutput, output.name, node.dtype, node.axes,
                                    declared_strides(graph, node, output.column_strides), output.alias});
    }
    for (const Temporary& temporary : plan.temporaries) {
        std::vector<std::int64_t> extents;
        for (const AxisId axis : temporary.axes) {
            if (!plan.graph->axis(axis).is_row) extents.push_back(plan.graph->axis(axis).extent);
        }
        program->tensors.push_back(
            {Place::kTemporary, temporary.name, temporary.dtype, temporary.axes, contiguous_strides(extents)});
        program->tensors.back().in_tiles = temporary.in_tiles;
    }
    for (const Temporary& temporary : plan.temporaries) {
        if (temporary.over.empty()) continue;
        program->tensors[static_cast<std::size_t>(find_tensor(*program, temporary.name))].over =
            find_tensor(*program, temporary.over);
    }
}

std::string reasons(const Group& group, const Target& target) {
    std::string text;
    for (const FamilyOffer& offer : offers(group, target)) {
        std::string why = offer.declined;
        for (const Schedule& schedule : offer.schedules) {
            if (!why.empty()) break;
            const auto built = build_kernel(group, schedule, target);
            why = built ? "" : built.reason();
        }
        text += fmt::format("\n  {}: {}", name(offer.family), why);
    }
    return text;
}

// Whether the library can read or write it: neighbours along the innermost column axis.
void require_dense(const Program& program, const ProductStep& product, int tensor) {
    const ProgramTensor& facts = program.tensors[static_cast<std::size_t>(tensor)];
    if (facts.column_strides.empty() || facts.column_strides.back() == 1) return;
    fail(ErrorCode::kUnsupported, "matmul {}: '{}' has column stride {}; its innermost columns must be neighbours",
         product.name, facts.name, facts.column_strides.back());
}

ProductStep make_product(const Program& program, const Product& product) {
    ProductStep step{.name = product.name,
                     .left = find_tensor(program, product.left),
                     .right = find_tensor(program, product.right),
                     .result = find_tensor(program, product.result),
                     .contracted = product.contracted,
                     .accumulate = product.accumulate};
    if (!product.accumulator.empty()) step.accumulator = find_tensor(program, product.accumulator);
    step.rounded_rows = product.rounded_rows;
    for (const int tensor : {step.left, step.right, step.result}) require_dense(program, step, tensor);
    return step;
}

// Of a kernel's accesses, in the order that they cost.
struct Apart {
    std::ptrdiff_t gathered = 0;    // loads of whole rows whose lanes each have an address of their own, in no run
    std::ptrdiff_t in_periods = 0;  // loads of a few vectors, and stores in pieces, which do not pass the caches
    auto operator<=>(const Apart&) const = default;
};

// A table that heads share is in a GPU's first-level cache: rope_complex of f32 runs at 98 % of copy whose rotations
// are gathered. A CPU takes the lanes of any one by one.
Apart accesses_apart(const Kernel& kernel, bool of_tables) {
    const auto columns = [&](const KernelTensor& tensor) {
        std::int64_t count = 1;
        for (const AxisId axis : tensor.axes) count *= kernel.axis(axis).is_row ? 1 : kernel.axis(axis).extent;
        return count;
    };
    std::int64_t whole = 0;
    for (const KernelTensor& tensor : kernel.tensors) whole = std::max(whole, columns(tensor));
    const auto is_gather = [&](const Inst& inst) {
        return inst.kind == InstKind::kLoad && inst.access.kind == Access::Kind::kGather && inst.access.run == 0 &&
               !inst.access.in_periods &&
               (of_tables || columns(kernel.tensors[static_cast<std::size_t>(inst.index)]) == whole);
    };
    Apart found;
    each_inst(kernel, [&](const Inst& inst) {
        found.gathered += is_gather(inst) ? 1 : 0;
        found.in_periods += inst.access.in_periods ? 1 : 0;
    });
    // The ends of a peeled row are few columns, which are loaded one by one beside whole vectors.
    for (const Stmt& stmt : kernel.body) {
        const auto* loop = std::get_if<ColumnLoop>(&stmt.node);
        if (loop == nullptr || loop->part != ColumnLoop::Part::kEnds) continue;
        found.gathered -= std::count_if(loop->body.begin(), loop->body.end(), is_gather);
    }
    return found;
}

// Lanes of a CPU's widest register of the kernel's narrowest floats.
int register_lanes(const Kernel& kernel) {
    constexpr std::size_t kRegisterBytes = 64;
    std::size_t element = sizeof(double);
    for (const KernelTensor& tensor : kernel.tensors) {
        if (is_float(tensor.dtype)) element = std::min(element, size_bytes(tensor.dtype));
    }
    return static_cast<int>(kRegisterBytes / element);
}

// Whether a peeled row is reduced of so many tensors that whole vectors of them are worth a table put together column
// by column. H200, ms in twos, of which tables are too, and so: add_rms_norm of 2050, 5002, 12290 and 20002 bf16
// columns, which has four, 0.0739, 0.0895, 0.116 and 0.0994, and 0.0705, 0.0845, 0.103 and 0.0892. But rms_norm of
// 8194, which has two, 0.0702 and 0.0719, layer_norm of 2050 0.0753 and 0.0947; nor what is only mapped, whose rows
// beside it begin elsewhere: four mixed streams of 2050 columns 0.0917 and 0.313.
bool is_peeled_of_many(const Kernel& kernel) {
    constexpr std::ptrdiff_t kMany = 4;
    if (!kernel.schedule.peel || kernel.schedule.family != Family::kRowReduction) return false;
    const auto is_row = [&](AxisId axis) { return kernel.axis(axis).is_row; };
    const auto has_rows = [&](const KernelTensor& tensor) {
        return std::ranges::any_of(tensor.axes, is_row) && !std::ranges::all_of(tensor.axes, is_row);
    };
    return std::ranges::count_if(kernel.tensors, has_rows) >= kMany;
}

// The kernel, or one whose shorter vectors lie where its own are gathered, as those that a group of columns divides
// which turn within it. In periods nothing is gathered, and a whole register takes them as it is.
Kernel without_gathers(const Group& group, Kernel kernel, const std::vector<Schedule>& schedules,
                       const Target& target) {
    const bool of_tables = !target.is_gpu();
    if (is_peeled_of_many(kernel)) return kernel;
    Apart least = accesses_apart(kernel, of_tables);
    std::set<int> tried = {kernel.schedule.vector};
    for (const Schedule& schedule : schedules) {
        if (least == Apart{}) break;
        if (schedule.vector > kernel.schedule.vector || !tried.insert(schedule.vector).second) continue;
        auto narrower = build_kernel(group, schedule, target);
        if (!narrower) continue;
        const Apart left = accesses_apart(*narrower, of_tables);
        const bool has_fewer =
            schedule.vector < register_lanes(*narrower) ? left.gathered < least.gathered : left < least;
        if (!has_fewer) continue;
        least = left;
        kernel = std::move(*narrower);
    }
    return kernel;
}

// Of the schedule that is taken where no choice is given: the most promising that can be, or the one in its place.
std::optional<Kernel> first_kernel(const Group& group, const Target& target) {
    for (const FamilyOffer& offer : offers(group, target)) {
        for (const Schedule& schedule : offer.schedules) {
            auto kernel = build_kernel(group, schedule, target);
            if (!kernel) continue;
            if (offer.family == Family::kRowsReduction) return std::move(*kernel);
            return without_gathers(group, std::move(*kernel), offer.schedules, target);
        }
    }
    return std::nullopt;
}

Kernel choose_kernel(const Group& group, const Target& target, const ScheduleChoice& choice) {
    if (choice) {
        if (const auto schedule = choice(group)) {
            if (auto kernel = build_kernel(group, *schedule, target)) return std::move(*kernel);
        }
    }
    if (auto kernel = first_kernel(group, target)) return std::move(*kernel);
    fail(ErrorCode::kUnsupported, "no schedule runs kernel {} on {}:{}", group.name, target.name,
         reasons(group, target));
}

}  // namespace

Offer<Kernel> build_kernel(const Group& group, const Schedule& schedule, const Target& target) {
    auto kernel = lower(group, schedule, target);
    if (!kernel || kernel->order) return kernel;  // no loops that a pass would change
    verify(*kernel, "lower");
    for (const Pass& pass : kPasses) {
        *kernel = pass.run(std::move(*kernel), target);
        verify(*kernel, pass.name);
    }
    if (schedule.stages > 0 && kernel->stage_bytes == 0)
        return Declined{"no load of a row's first loop is one that asynchronous copies make"};
    if (target.is_gpu() && kernel->shared_bytes > target.shared_bytes_per_block) {
        return Declined{fmt::format("{} bytes of shared memory a block; {} has {}", kernel->shared_bytes, target.name,
                                    target.shared_bytes_per_block)};
    }
    // The grid is as many blocks as stay: one that does not fit would run alone, after all others.
    const std::int64_t staying_bytes = schedule.blocks_per_sm * (kernel->shared_bytes + kSystemSharedBytes);
    if ((schedule.stages > 0 || schedule.ahead > 0) && staying_bytes > target.shared_bytes_per_sm) {
        return Declined{fmt::format("{} bytes of shared memory a multiprocessor; {} has {}", staying_bytes, target.name,
                                    target.shared_bytes_per_sm)};
    }
    if (target.is_gpu()) {
        if (std::string reason = lacks_registers(*kernel, target); !reason.empty()) return Declined{std::move(reason)};
    }
    return kernel;
}

std::vector<Schedule> legal_schedules(const Group& group, const Target& target) {
    std::vector<Schedule> legal;
    for (const FamilyOffer& offer : offers(group, target)) {
        for (const Schedule& schedule : offer.schedules) {
            if (build_kernel(group, schedule, target)) legal.push_back(schedule);
        }
    }
    if (const auto taken = first_kernel(group, target)) {
        const auto place = std::find(legal.begin(), legal.end(), taken->schedule);
        RJ_CHECK(place != legal.end(), "kernel {}: compile takes a schedule that none offered", group.name);
        std::rotate(legal.begin(), place, place + 1);
    }
    return legal;
}

namespace {

// A row of a kernel that sees blocks of columns: wide enough for a group of threads, and small enough that a part of
// any number of them fills the multiprocessors as well as it can.
std::int64_t block_columns(const ChunkOptions& chunks) {
    constexpr std::int64_t kBlockColumns = 256;
    return chunks.part_columns > 0 ? std::min(chunks.part_columns, kBlockColumns) : kBlockColumns;
}

}  // namespace

Plan plan_graph(const GraphData& graph, const Target& target, const ChunkOptions& chunks) {
    if (graph.outputs().empty())
        fail(ErrorCode::kInvalidGraph,
             "the graph has no outputs; call Graph::output, or end the text with an 'output' line");
    const auto runs = [&](const Group& group) { return first_kernel(group, target).has_value(); };
    const auto in_tiles = [&](const Group& group, const std::string& tensor) {
        return runs_in_tiles(group, tensor, target);
    };
    // With numbers of a product's rows put together of its tiles', where chunks leave its kernel beside it.
    const auto in_chunks = [&](const GraphData& whole, const auto& joined) {
        const Plan plain = cheapest_plan(whole, target, runs);
        Plan parted = divide_into_chunks(joined(part_row_sums(plain, target, runs, in_tiles)), chunks);
        return tiles_are_read_at_once(parted) ? std::move(parted) : divide_into_chunks(joined(plain), chunks);
    };
    const auto alone = [](Plan plan) { return plan; };
    Plan plan;
    if (!chunks.low_memory) {
        plan = in_chunks(graph, alone);
        if (!plan.lacks_room) return plan;
    }
    Offer<ColumnBlocks> blocks = divide_into_column_blocks(graph, block_columns(chunks));
    if (!blocks) {
        if (chunks.low_memory) plan = in_chunks(graph, alone);
        plan.notes.push_back(fmt::format("no gradient is made in parts of its columns: {}", blocks.reason()));
        return plan;
    }
    const Plan parts = cheapest_plan(*blocks->parts, target, runs, "part");
    return in_chunks(*blocks->whole, [&](Plan whole) { return join_plans(std::move(whole), parts, *blocks); });
}

int find_tensor(const Program& program, std::string_view name) {
    for (std::size_t i = 0; i < program.tensors.size(); ++i) {
        if (program.tensors[i].name == name) return static_cast<int>(i);
    }
    RJ_CHECK(false, "compile: no tensor '{}'", name);
}

Program compile(const GraphData& graph, const Target& target, const ScheduleChoice& choice,
                const ChunkOptions& chunks) {
    return compile_plan(graph, plan_graph(graph, target, chunks), target, choice, chunks);
}

Program compile_plan(const GraphData& graph, const Plan& plan, const Target& target, const ScheduleChoice& choice,
                     const ChunkOptions& chunks) {
    Program program;
    program.axes = plan.graph->axes();
    program.notes = plan.notes;
    declare_arguments(graph, plan, &program);
    for (const Group& group : plan.groups)
        program.steps.push_back(make_step(program, group, choose_kernel(group, target, choice)));
    for (const Product& product : plan.products) program.products.push_back(make_product(program, product));
    program.order = plan.steps;
    program.division = plan.division;
    for (const ChunkLoop& loop : plan.loops) {
        ProgramLoop& made = program.loops.emplace_back();
        made = {
            .axis = loop.axis, .first = loop.first, .end = loop.end, .costs = chunk_costs(plan, loop, target, chunks)};
        for (const std::string& name : loop.within) made.within.push_back(find_tensor(program, name));
        for (const std::string& name : loop.beside) made.beside.push_back(find_tensor(program, name));
        if (loop.lender.empty()) continue;
        made.lender = find_tensor(program, loop.lender);
        made.writes_lender = loop.writes_lender;
        made.lender_is_rounded = loop.lender_is_rounded;
    }
    take_own_products(&program, target);
    find_needless(&program);
    choose_directions(&program);
    if (target.dependent_launch) chain_kernels(&program);
    return program;
}

std::int64_t lent_bytes(const Program& program, const ProgramLoop& loop) {
    if (loop.lender < 0) return 0;
    const ProgramTensor& lender = program.tensors[static_cast<std::size_t>(loop.lender)];
    auto bytes = static_cast<std::int64_t>(size_bytes(lender.dtype));
    for (const AxisId axis : lender.axes) bytes *= program.axes[static_cast<std::size_t>(axis)].extent;
    // What lies behind a tensor whose rows end between two places begins at the next one.
    bool is_between = false;
    for (const int index : loop.within) {
        const ProgramTensor& tensor = program.tensors[static_cast<std::size_t>(index)];
        if (tensor.over >= 0 || contains(loop.beside, index)) continue;
        bytes -= is_between ? kPlaceAlignment : 0;
        auto row_bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
        for (const AxisId id : tensor.axes) {
            const AxisInfo& axis = program.axes[static_cast<std::size_t>(id)];
            row_bytes *= axis.is_row ? 1 : axis.extent;
        }
        is_between = row_bytes % kPlaceAlignment != 0;
    }
    return std::max<std::int64_t>(0, bytes);
}

SharedRows shared_rows(const Program& program, const ProductStep& product) {
    // Whole tiles of a product on either side; and so many of the rows that have room stay in the workspace, that few
    // kernels round the others: each has twice the rows of the one before, the first twice those.
    constexpr std::int64_t kTileRows = 256;
    constexpr std::int64_t kGapPart = 256;
    if (product.rounded_rows < 0) return {};
    const ProgramTensor& sum = program.tensors[static_cast<std::size_t>(product.accumulator)];
    const ProgramTensor& result = program.tensors[static_cast<std::size_t>(product.result)];
    const std::int64_t all = program.axes[static_cast<std::size_t>(sum.axes[0])].extent;
    const auto bytes_of = [&](const ProgramTensor& tensor, std::int64_t rows) {
        return rows * tensor.column_strides[0] * static_cast<std::int64_t>(size_bytes(tensor.dtype));
    };
    SharedRows shared;
    const std::int64_t fitting = bytes_of(result, all) / bytes_of(sum, 1);
    shared.rows = (fitting - fitting / kGapPart - 1) / kTileRows * kTileRows;
    shared.bytes = bytes_of(sum, shared.rows);
    shared.offset_bytes = (bytes_of(result, all) - shared.bytes) / kPlaceAlignment * kPlaceAlignment;
    const bool has_gap = shared.rows > 0 && shared.offset_bytes >= bytes_of(result, 1);
    return has_gap ? shared : SharedRows{};
}

Step make_step(const Program& program, Group group, Kernel kernel) {
    Step step{.group = std::move(group), .kernel = std::move(kernel), .tensors = {}, .scalars = {}};
    for (const KernelTensor& tensor : step.kernel.tensors) step.tensors.push_back(find_tensor(program, tensor.name));
    for (const KernelScalar& scalar : step.kernel.scalars) step.scalars.push_back(find_scalar(program, scalar.name));
    return step;
}

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& extents) {
    std::vector<std::int64_t> strides(extents.size(), 1);
    for (std::size_t i = extents.size(); i-- > 1;) strides[i - 1] = strides[i] * extents[i];
    return strides;
}

namespace {

// Blocks along the rows of each position of the outer axes.
std::int64_t row_blocks_of(const Kernel& kernel, std::int64_t rows) {
    const std::int64_t run =
        std::clamp<std::int64_t>(rows / kernel.row_lanes() / kernel.rows_for_run(), 1, kernel.schedule.run);
    const std::int64_t per_block = std::int64_t{kernel.schedule.rows_per_block} * run * kernel.row_lanes();
    std::int64_t row_blocks = (rows + per_block - 1) / per_block;
    // Few rows are spread over many blocks, whose threads share the long segments of fewer of them.
    constexpr std::int64_t kManyBlocks = 1024;
    if (const int shares = kernel.schedule.shares; shares > 0) {
        const std::int64_t together = per_block / shares;
        row_blocks = std::max(row_blocks, std::min(kManyBlocks, (rows + together - 1) / together));
    }
    // A thread stays at its place, and at its columns of a row, where all of them come round.
    const std::int64_t round = kernel.blocks_of_part() * kernel.rows_alike;
    if (kernel.most_row_blocks > 0)
        row_blocks = std::min(row_blocks, std::max(round, kernel.most_row_blocks / round * round));
    return std::min(row_blocks, kMaxGrid / kernel.schedule.column_blocks);
}

}  // namespace

std::int64_t grid_blocks(const Kernel& kernel, const RowCounts& rows) {
    const std::int64_t column_blocks = kernel.schedule.column_blocks;
    if (kernel.outer.empty()) return row_blocks_of(kernel, rows.inner) * column_blocks;
    const std::int64_t of_each = slots_of(kernel, rows) * kernel.blocks_of_part();
    const std::int64_t most = kMaxGrid / column_blocks;
    return (of_each > 0 && rows.outer > most / of_each ? most : rows.outer * of_each) * column_blocks;
}

// Each position of the outer axes has as many, so that as many blocks as stay on the device at once come to an end
// together: of the counts from what one turn of them has room for on, the one whose turns take the fewest rows, where
// to begin and to store a part is as much as some rows are.
std::int64_t slots_of(const Kernel& kernel, const RowCounts& rows) {
    const std::int64_t of_part = kernel.blocks_of_part();
    const std::int64_t most = row_blocks_of(kernel, rows.inner) / of_part;
    if (kernel.outer.empty() || most <= 1 || rows.outer == 0) return most;
    constexpr std::int64_t kTried = 8;
    constexpr std::int64_t kRowsOfPart = 2;
    const std::int64_t per_block = std::int64_t{kernel.schedule.rows_per_block} * kernel.row_lanes() * of_part;
    const std::int64_t at_once = std::max<std::int64_t>(1, kernel.most_row_blocks / of_part);
    const std::int64_t least_slots =
        kernel.most_rows_of_part > 0 ? ceil_div(rows.inner, kernel.most_rows_of_part) : std::int64_t{1};
    const std::int64_t first = std::clamp<std::int64_t>(std::max(at_once / rows.outer, least_slots), 1, most);
    std::int64_t best = first;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::int64_t slots = first; slots <= std::min(most, first + kTried - 1); ++slots) {
        // Of units that far outnumber the places they take turns at, no count needs to be exact.
        const std::int64_t turns =
            rows.outer / at_once * slots + (rows.outer % at_once * slots + at_once - 1) / at_once;
        const std::int64_t each = (rows.inner + per_block * slots - 1) / (per_block * slots) + kRowsOfPart;
        if (turns * each >= least) continue;
        least = turns * each;
        best = slots;
    }
    return best;
}

}  // namespace rowjit
