#include "compiler/plan/group_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

namespace rowjit {
namespace {

constexpr std::string_view kPrefix = "rj_";
constexpr std::size_t kMaxNameLength = 60;

// Types, constants and variables of the prelude, without their "rj_", which stand before kernels in their source. A
// function may have a kernel's name besides.
constexpr std::string_view kTaken =
    " adding are_several as_they_are bf16 bool compensated compensated_cross_entropy compensated_divergence "
    "compensated_entropy compensated_max_sum_exp compensated_sum compensated_weighted compensated_welford "
    "constant counted_rows cross_entropy deviations_of_rows digit divergence divergences divisor e4m3 e5m2 entropies "
    "entropy exact_narrow_sum exact_sum exact_sums exp2_bias f16 few_greatest few_key folded fractions greatest "
    "greatest_origin half_rows half_tile i8 ids_of_rows is_same larger limits max_sum_exp maximum meet_apart memory "
    "minimum moments moments_of_rows near_zero one_up one_word ordered origin origin_in_powers origin_itself "
    "packed_fold philox plain product product_row_threads product_stages rescaled rescaled_of_rows smaller state_words "
    "sum sums_where tile_columns tile_depth tile_pitch tile_rows uniform_run uniforms value weighings weighted "
    "welford ";

}  // namespace

std::string group_name(const GraphData& group) {
    std::string name(kPrefix);
    std::set<std::string> named;
    for (const OutputInfo& output : group.outputs()) {
        if (!named.insert(output.tensor()).second) continue;
        if (named.size() > 1) name += "_";
        name += output.tensor();
    }
    name.resize(std::min(name.size(), kMaxNameLength));
    const std::string word = name.substr(std::min(name.size(), kPrefix.size()));
    const bool is_taken = kTaken.find(fmt::format(" {} ", word)) != std::string_view::npos;
    return is_taken ? name + "_" : name;
}

}  // namespace rowjit
