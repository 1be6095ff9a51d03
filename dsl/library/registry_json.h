// The registry as JSON: what `rowjit ops --json` prints and embedders ask the C interface for.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dsl/library/registry.h"

namespace rowjit {

// Name, summary, formula, columns, results, operands and options of an operation, each operand and option an object.
nlohmann::json to_json(const CompositeInfo& op);

}  // namespace rowjit
