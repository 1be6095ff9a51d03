// Gradients of columns that a row reads at several positions, each of which may be read more than once or lie outside,
// against the oracle: every schedule of what looks through the positions.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "rowjit/gradient.h"
#include "tests/simt/cases.h"
#include "tests/simt/simt_device.h"

using namespace rowjit;

namespace {

constexpr const char* kDistillation = R"(
rows tokens
columns k = 11
input x: bf16[tokens, 48]
input ids: i64[tokens, k]
input q: f32[tokens, k]
h = cast(x, f32)
m = max(h)
l = m + log(sum(exp(h - m)))
output loss = sum(exp(q) * (q - (cast(index(x, tokens, ids), f32) - l)))
)";

// Each weight is of a softmax, so that all columns are summed with what the positions gave.
constexpr const char* kRouter = R"(
rows tokens
columns experts = 37
columns k = 17
input x: f32[tokens, experts]
input ids: i32[tokens, k]
e = exp(x - max(x, experts))
w = index(e / sum(e, experts), tokens, ids)
output gates = w / (sum(w, k) + 1)
)";

// Whose positions all rows share.
constexpr const char* kPermutation = R"(
rows tokens
columns d = 24
input x: bf16[tokens, d]
input p: i64[d]
output y = index(x, tokens, p)
)";

// What the columns of several heads are multiplied with.
constexpr const char* kHeads = R"(
rows tokens
columns heads = 3
columns d = 10
columns k = 9
input x: f32[tokens, d]
input scale: f32[tokens, heads, d]
input ids: i64[tokens, k]
output y = index(sum(x * scale, heads), tokens, ids)
)";

bool looks_through(const Case& one) {
    bool found = false;
    for (const Step& step : one.program.steps)
        each_inst(step.kernel, [&](const Inst& inst) { found = found || inst.kind == InstKind::kSumWhere; });
    return found;
}

}  // namespace

TEST_CASE("gradients of columns read at several positions agree with the oracle") {
    const std::vector<std::pair<std::string, std::string>> graphs = {
        {"distillation", kDistillation}, {"router", kRouter}, {"permutation", kPermutation}, {"heads", kHeads}};
    for (const char* name : {"sm_90a", "gfx942"}) {
        const Target target = simt::target(name);
        std::vector<Case> cases;
        for (const auto& [what, text] : graphs) {
            if (target.warp_size == 64 && what != "heads") continue;
            const std::size_t first = cases.size();
            add_backward_cases(what, Graph::parse(text, what), {"x"}, target, &cases);
            CHECK_MESSAGE(std::any_of(cases.begin() + static_cast<std::ptrdiff_t>(first), cases.end(), looks_through),
                          what);
        }
        check_cases(cases, target);
    }
}
