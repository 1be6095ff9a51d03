// What stands before a kernel in its source: the files of templates/ that every kernel of a target shares, in the order
// that templates/prelude.h lists.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "compiler/emit/gpu.h"
#include "embedded/prelude.h"
#include "embedded/prelude_all_reduce.h"
#include "embedded/prelude_cluster.h"
#include "embedded/prelude_coordinates.h"
#include "embedded/prelude_cuda.h"
#include "embedded/prelude_divide.h"
#include "embedded/prelude_elements.h"
#include "embedded/prelude_exp.h"
#include "embedded/prelude_folds.h"
#include "embedded/prelude_greatest.h"
#include "embedded/prelude_hip.h"
#include "embedded/prelude_integers.h"
#include "embedded/prelude_math.h"
#include "embedded/prelude_memory.h"
#include "embedded/prelude_narrow.h"
#include "embedded/prelude_online.h"
#include "embedded/prelude_random.h"
#include "embedded/prelude_sums.h"
#include "embedded/prelude_trig.h"
#include "embedded/prelude_weights.h"

namespace rowjit {

std::vector<std::string_view> gpu_prelude_parts(const Target& target) {
    RJ_CHECK(target.is_gpu(), "emit gpu: {} is no GPU", target.name);
    const bool is_hip = target.backend == Backend::kHip;
    std::vector<std::string_view> parts = {is_hip ? embedded::prelude_hip : embedded::prelude_cuda,
                                           embedded::prelude_exp};
    if (is_hip) parts.push_back(embedded::prelude_math);
    parts.insert(parts.end(), {embedded::prelude_trig, embedded::prelude_narrow, embedded::prelude_weights,
                               embedded::prelude_divide, embedded::prelude, embedded::prelude_elements,
                               embedded::prelude_memory, embedded::prelude_integers, embedded::prelude_random,
                               embedded::prelude_coordinates, embedded::prelude_folds, embedded::prelude_sums,
                               embedded::prelude_online, embedded::prelude_greatest, embedded::prelude_all_reduce});
    if (target.clusters) parts.push_back(embedded::prelude_cluster);
    return parts;
}

std::string gpu_prelude(const Target& target) {
    std::string text = fmt::format("#define RJ_WARP_SIZE {}\n\n", target.warp_size);
    for (const std::string_view part : gpu_prelude_parts(target)) text.append(part).append("\n");
    return text;
}

}  // namespace rowjit
