#include "base/target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "base/fail.h"

namespace rowjit {

std::string_view name(Backend backend) {
    switch (backend) {
        case Backend::kCpu: return "cpu";
        case Backend::kCuda: return "cuda";
        case Backend::kHip: return "hip";
    }
    return "unknown";
}

const std::vector<Target>& all_targets() {
    static const std::vector<Target> targets = {
#define ROWJIT_TARGET(name, backend, warp, sm, shared_block, shared_sm, registers, assembler, threads, l2, bandwidth, \
                      clusters, dependent, pack, products, lanes, label)                                              \
    Target{name, Backend::backend, warp,     sm,        shared_block, shared_sm, registers, assembler, threads,       \
           l2,   bandwidth,        clusters, dependent, pack,         products,  lanes,     label,     ""},
#include "base/targets.def"
#undef ROWJIT_TARGET
    };
    return targets;
}

Target find_target(std::string_view name) {
    if (name == "native") {
        Target target = find_target("x86-64-v2");
        target.name = "native";
        target.label = "this CPU";
        target.sm_count = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
        return target;
    }
    const std::string_view stem = name.substr(0, name.find(':'));
    std::vector<std::string> known = {"native"};
    for (const Target& target : all_targets()) {
        if (target.name == stem) {
            Target found = target;
            found.name = std::string(name);
            return found;
        }
        known.push_back(target.name);
    }
    fail(ErrorCode::kUnsupported, "unknown target '{}'; known targets: {}", name, fmt::join(known, ", "));
}

}  // namespace rowjit
