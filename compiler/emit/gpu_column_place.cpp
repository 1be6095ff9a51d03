#include "compiler/emit/gpu_column_place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>

#include "base/check.h"
#include "base/dtype.h"

namespace rowjit::gpu_emit {
namespace {

// Blocks that share a round of the columns, or each with all its rounds behind the other's. What an iteration adds
// stands by itself. In elements of a tensor that has its columns so many apart.
std::string place_of(const ColumnLoop& loop, const GpuScope& scope, const std::string& iteration, std::int64_t step) {
    const std::int64_t blocks = scope.kernel().schedule.column_blocks;
    const bool shares = blocks > 1 && scope.kernel().shares_rounds(loop);
    const std::int64_t threads_of_block = scope.threads() * (shares ? 1 : loop.iterations);
    std::vector<std::string> terms;
    if (blocks > 1) terms.push_back(fmt::format("column_block * {}", threads_of_block));
    if (scope.threads() > 1) terms.emplace_back("t");
    if (!terms.empty()) terms = {first_lane(loop, fmt::format("{}", fmt::join(terms, " + ")))};
    if (!terms.empty() && step > 1) terms = {fmt::format("{} * {}", in_parentheses(terms.front()), step)};
    if (!iteration.empty())
        terms.push_back(fmt::format("{} * {}", in_parentheses(iteration), step_of(loop, scope) * step));
    return terms.empty() ? "0" : fmt::format("{}", fmt::join(terms, " + "));
}

}  // namespace

std::string all_entries(const ColumnLoop& loop) {
    return loop.iterations > 1 ? fmt::format("[{}]", loop.iterations) : "";
}

bool takes_remainder(const GpuAddress& address) { return address.offset.find('%') != std::string::npos; }

bool flips(const std::vector<int>& order) {
    for (std::size_t l = 0; l < order.size(); ++l) {
        if (order[l] != (static_cast<int>(l) ^ order[0])) return false;
    }
    return true;
}

std::string window_entry(const std::string& window, int rows_back) { return fmt::format("{}[{}]", window, rows_back); }

std::string place_in_ring(const Slot& window, const ColumnLoop& loop, const GpuScope& scope, const std::string& row) {
    return fmt::format("{} + ({} * {} + rj_thread()) * {}", window.shared_offset_bytes, row,
                       scope.kernel().block_threads(), loop.vector * size_bytes(window.dtype));
}

std::string in_parentheses(const std::string& text) {
    return text.find(' ') == std::string::npos ? text : "(" + text + ")";
}

std::string vector_of(const GpuScope& scope, const std::string& round) {
    if (scope.threads() == 1) return round.empty() ? "0" : round;
    return round.empty() ? "t" : fmt::format("{} * {} + t", in_parentheses(round), scope.threads());
}

std::string first_lane(const ColumnLoop& loop, const std::string& vector) {
    return loop.vector > 1 && vector != "0" ? fmt::format("{} * {}", in_parentheses(vector), loop.vector) : vector;
}

std::int64_t step_of(const ColumnLoop& loop, const GpuScope& scope) {
    const std::int64_t blocks = scope.kernel().shares_rounds(loop) ? scope.kernel().schedule.column_blocks : 1;
    return std::int64_t{scope.threads()} * loop.vector * blocks;
}

std::string column_of(const ColumnLoop& loop, GpuScope& scope, const std::string& iteration) {
    std::string place = place_of(loop, scope, iteration, 1);
    switch (loop.part) {
        case ColumnLoop::Part::kRow: return place;
        case ColumnLoop::Part::kWhole: return fmt::format("{} + {}", scope.head(), place);
        case ColumnLoop::Part::kEnds:
            return fmt::format("rj_peeled_end<{}>({}, {}, {})", scope.kernel().schedule.vector, place, scope.head(),
                               loop.columns);
    }
    RJ_CHECK(false, "emit gpu: {}: part {} of a row", scope.kernel().name, static_cast<int>(loop.part));
}

// Where a loop's iterations are unrolled, what one adds to the address of a vector stands by itself, and is a constant
// in the access. Of a column, an int that is widened before it is added to a pointer, the compiler takes no constant
// out: with the place in shared memory, a copy of 16 bytes into it took eleven instructions, and takes four. In a group
// of a serial loop too where its loads wait for each other, and a softmax's 131072 columns spilled their addresses; a
// top-k of f32 spilled with constants.
GpuAddress by_iteration(GpuAddress address, const ColumnLoop& loop, GpuScope& scope, const std::string& iteration) {
    if (loop.iterations == 1 || address.offset != gpu_scaled("c", std::to_string(address.step))) return address;
    if (address.step > 1) {
        if (loop.is_resident() && !loop.is_peeled()) address.offset = place_of(loop, scope, iteration, address.step);
        return address;
    }
    const bool apart = iteration == kOfGroup && loop.part != ColumnLoop::Part::kEnds;
    if (loop.is_resident()) {
        address.offset = column_of(loop, scope, iteration);
    } else if (apart && scope.kernel().loads_together != LoadsTogether::kNot) {
        address.offset = fmt::format("{} + i * {}", column_of(loop, scope, kGroup), step_of(loop, scope));
    }
    return address;
}

// Where a loop is unrolled, so that its iteration is known, the compiler leaves out the guards of those that need none,
// and may then load when it likes: an add_rms_norm of 128256 f32 columns over 16 blocks spilled with all eight guarded.
std::string inside_row(const ColumnLoop& loop, const GpuScope& scope, const std::string& unrolled_iteration) {
    const std::int64_t whole = unrolled_iteration.empty() ? 0 : scope.kernel().whole_iterations(loop);
    const bool shifts = loop.part == ColumnLoop::Part::kWhole;  // and a vector may be neither in nor out
    const std::string inside =
        shifts ? fmt::format("c <= {}", loop.columns - loop.vector) : fmt::format("c < {}", loop.columns);
    return whole == 0 ? inside : fmt::format("({} < {} || {})", unrolled_iteration, whole, inside);
}

std::string guard(const std::string& condition) {
    return condition.front() == '(' ? "if " + condition : fmt::format("if ({})", condition);
}

void open_resident(const ColumnLoop& loop, GpuScope& scope) {
    SourceWriter& out = scope.out();
    if (loop.is_peeled()) scope.head();
    out.line("#pragma unroll");
    out.open(fmt::format("for (int i = 0; i < {}; ++i)", loop.iterations));
    out.line(fmt::format("const int c = {};", column_of(loop, scope, loop.iterations > 1 ? "i" : "")));
    if (loop.tail == ColumnLoop::Tail::kVector) out.open(guard(inside_row(loop, scope, "i")));
}

void close_resident(const ColumnLoop& loop, GpuScope& scope) {
    if (loop.tail == ColumnLoop::Tail::kVector) scope.out().close();
    scope.out().close();
}

}  // namespace rowjit::gpu_emit
