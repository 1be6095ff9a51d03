// What the tuner stores and the engine looks up: the name of a measured choice, and where one is looked for.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
#include "cache/bundle.h"
#include "cache/tuning_db.h"
#include "compiler/compile.h"
#include "runtime/choice_table.h"

namespace rowjit {

// A group's own text, without the defaults of its run-time scalars and what its values are called: equal computations
// share their tuning, whatever graph they came from.
std::string tuning_operation(const Group& group);

// Architecture and size of the device: the same part elsewhere is the same device.
std::string device_fingerprint(const Target& target);

TuningKey tuning_key(const Group& group, const Target& target);

// Where a schedule comes from, in the order in which they are asked.
enum class ChoiceSource : std::uint8_t {
    kPinned,   // a table that was given for it, in place of the next two
    kTuned,    // `rowjit tune` on this device
    kBundle,   // a bundle's tuning of such a device
    kShipped,  // measured before, for devices of this name (choice_table.h)
    kRule,     // the families' static rules
};
std::string_view name(ChoiceSource source);

struct MeasuredChoice {
    Schedule schedule;
    ChoiceSource source = ChoiceSource::kTuned;
};

// Where measured choices are looked for.
struct ChoiceSources {
    std::shared_ptr<const TuningDb> database;
    Bundles bundles = {};
    std::optional<ChoiceTable> pinned = std::nullopt;
    const std::vector<ChoiceTable>* shipped = &shipped_choices();
};

// `more`, and behind them those of ROWJIT_BUNDLE_PATH.
std::vector<std::string> bundle_paths(std::vector<std::string> more);

// Those of a cache directory ("" for none) and of the environment: ROWJIT_BUNDLE_PATH, before which come
// `more_bundles`, and ROWJIT_PINNED_CHOICES. Throws Error(kIo, kParse) for a pinned table that cannot be read: without
// it this process would choose otherwise than those it shall agree with.
ChoiceSources choice_sources(const std::string& cache_root, const std::vector<std::string>& more_bundles = {});

// Nothing where nobody has measured the group, or what was stored does not parse or does not build any more.
std::optional<MeasuredChoice> measured_choice(const ChoiceSources& sources, const Target& target, const Group& group);

// The same for compile(); the arguments must outlive it.
ScheduleChoice tuned_choice(const ChoiceSources& sources, const Target& target);

}  // namespace rowjit
