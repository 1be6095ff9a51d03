// An engine, and the bounds on its work, from the command line's common options.
#pragma once

#include <cstdint>

#include "runtime/engine_impl.h"
#include "tools/commands.h"

namespace rowjit {

Device make_device(const CommonOptions& common);
Engine make_engine(const CommonOptions& common);

// The directory of compiled kernels; "" when nothing is kept.
std::string cache_root(const CommonOptions& common);
// The same; throws Error(kMiss) when nothing is kept.
std::string required_cache_root(const CommonOptions& common);

struct WorkBounds {
    std::int64_t tokens;
    std::int64_t max_bytes;
};
WorkBounds work_bounds(const CommonOptions& common, const Device& device);

// --target, else the device's own.
std::vector<Target> chosen_targets(const CommonOptions& common);

}  // namespace rowjit
