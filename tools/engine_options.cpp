#include "tools/engine_options.h"

#include "base/fail.h"
#include "runtime/device.h"

namespace rowjit {

Device make_device(const CommonOptions& common) {
    return common.device.empty() ? Device::best() : Device(common.device);
}

Engine make_engine(const CommonOptions& common) {
    return Engine(make_device(common), {.cache_directory = common.cache_directory, .bundles = common.bundles});
}

std::string cache_root(const CommonOptions& common) {
    if (common.cache_directory == "off") return "";
    return common.cache_directory.empty() ? default_cache_directory() : common.cache_directory;
}

std::string required_cache_root(const CommonOptions& common) {
    std::string root = cache_root(common);
    if (root.empty())
        fail(ErrorCode::kMiss, "no cache directory: it is off, or neither ROWJIT_CACHE_DIR nor HOME is set");
    return root;
}

WorkBounds work_bounds(const CommonOptions& common, const Device& device) {
    // Large enough to leave the caches, small enough that a model's suite is tuned in about two minutes on two cores.
    const bool gpu = device.impl().target().is_gpu();
    WorkBounds bounds{gpu ? 16384 : 2048, gpu ? std::int64_t{2} << 30 : std::int64_t{128} << 20};
    if (common.jobs.tokens > 0) bounds.tokens = common.jobs.tokens;
    if (common.jobs.max_bytes > 0) bounds.max_bytes = common.jobs.max_bytes;
    return bounds;
}

std::vector<Target> chosen_targets(const CommonOptions& common) {
    if (common.targets.empty()) return {make_device(common).impl().target()};
    std::vector<Target> targets;
    for (const std::string& name : common.targets) targets.push_back(resolve_target(name));
    return targets;
}

}  // namespace rowjit
