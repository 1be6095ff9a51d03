// What the tuner stores and the engine looks up: the name of a measured choice, and where one is looked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"
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
    kTuned,    // `rowjit tune` on this device
    kShipped,  // measured before, for devices of this name (choice_table.h)
    kRule,     // the families' static rules
};
std::string_view name(ChoiceSource source);

struct MeasuredChoice {
    Schedule schedule;
    ChoiceSource source = ChoiceSource::kTuned;
};

// Nothing where nobody has measured the group, or what was stored does not parse or does not build any more.
std::optional<MeasuredChoice> measured_choice(const TuningDb& database, const Target& target, const Group& group,
                                              const std::vector<ChoiceTable>& tables = shipped_choices());

// The same for compile().
ScheduleChoice tuned_choice(const TuningDb& database, const Target& target);

}  // namespace rowjit
