#include "dsl/library/registry_json.h"

#include <nlohmann/json.hpp>

namespace rowjit {

nlohmann::json to_json(const CompositeInfo& op) {
    nlohmann::json json = {{"name", op.name},
                           {"summary", op.summary},
                           {"formula", op.formula},
                           {"columns", op.columns},
                           {"results", op.results},
                           {"operands", nlohmann::json::array()},
                           {"options", nlohmann::json::array()},
                           {"in_place", op.in_place}};
    for (const OperandInfo& operand : op.operands) {
        json["operands"].push_back({{"name", operand.name},
                                    {"shape", operand.shape},
                                    {"dtype", operand.dtype},
                                    {"required", operand.required},
                                    {"constant", operand.constant}});
    }
    for (const OptionInfo& option : op.options) {
        json["options"].push_back({{"name", option.name},
                                   {"type", name(option.type)},
                                   {"default", option.default_value},
                                   {"choices", option.choices},
                                   {"of_graph", option.of_graph},
                                   {"meaning", option.meaning}});
    }
    return json;
}

}  // namespace rowjit
