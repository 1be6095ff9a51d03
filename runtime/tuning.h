// What the tuner stores and the engine looks up: the name of a measured choice.
#pragma once

#include <string>

#include "base/target.h"
#include "cache/tuning_db.h"
#include "compiler/compile.h"

namespace rowjit {

// A group's own text, without the defaults of its run-time scalars and what its values are called: equal computations
// share their tuning, whatever graph they came from.
std::string tuning_operation(const Group& group);

// Architecture and size of the device: the same part elsewhere is the same device.
std::string device_fingerprint(const Target& target);

TuningKey tuning_key(const Group& group, const Target& target);

// A choice from the database, for compile(); a record that no longer parses is no choice.
ScheduleChoice tuned_choice(const TuningDb& database, const Target& target);

}  // namespace rowjit
