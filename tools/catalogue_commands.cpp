// `rowjit ops`: the operations by name, from the registry, and with --json what tests cover of each:
// docs/coverage.json, which the tests are held to (tests/support/coverage.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dsl/library/registry_json.h"
#include "embedded/coverage.h"
#include "tools/commands.h"
#include "tools/report.h"

namespace rowjit {
namespace {

// A record for each test of the operation: its options by dtype, and what all of them are tested for.
nlohmann::json tests_of(const CompositeInfo& op) {
    static const nlohmann::json coverage = nlohmann::json::parse(embedded::coverage);
    nlohmann::json found = nlohmann::json::array();
    for (const auto& [test, section] : coverage.items()) {
        const auto covered = section.at("ops").find(op.name);
        if (covered == section.at("ops").end()) continue;
        found.push_back({{"test", test},
                         {"checks", section.at("checks")},
                         {"in_ci", section.at("in_ci")},
                         {"targets", section.at("targets")},
                         {"options", *covered}});
    }
    return found;
}

nlohmann::json tested(const CompositeInfo& op) {
    nlohmann::json json = to_json(op);
    json["tests"] = tests_of(op);
    return json;
}

void print_one(const CompositeInfo& op) {
    fmt::print("{}: {}\n  {}\n  columns: {}\n", op.name, op.summary, op.formula, op.columns);
    Table operands({"operand", "shape", "dtype", ""});
    for (const OperandInfo& operand : op.operands) {
        operands.add({std::string(operand.name), std::string(operand.shape), std::string(operand.dtype),
                      operand.required ? "" : "optional"});
    }
    fmt::print("\n{}  results: {}\n", operands.text(), fmt::join(op.results, ", "));
    if (op.options.empty()) return;
    Table options({"option", "default", "choices", "meaning"});
    for (const OptionInfo& option : op.options) {
        options.add({std::string(option.name), std::string(option.default_value), std::string(option.choices),
                     std::string(option.meaning)});
    }
    fmt::print("\n{}", options.text());
}

}  // namespace

int ops_command(const CommonOptions& common, const std::string& op) {
    if (!op.empty()) {
        const CompositeInfo& found = find_composite(op);
        if (common.json) {
            fmt::print("{}\n", tested(found).dump(2));
        } else {
            print_one(found);
        }
        return kExitOk;
    }
    nlohmann::json document = nlohmann::json::array();
    Table table({"op", "what it is"});
    for (const CompositeInfo& row : composites()) {
        document.push_back(tested(row));
        table.add({std::string(row.name), std::string(row.summary)});
    }
    fmt::print("{}", common.json ? document.dump(2) + "\n" : table.text());
    return kExitOk;
}

}  // namespace rowjit
