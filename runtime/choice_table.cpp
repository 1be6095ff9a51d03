#include "runtime/choice_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/fail.h"
#include "embedded/choices_h100.h"
#include "embedded/choices_h200.h"
#include "embedded/choices_sm_90a.h"

namespace rowjit {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TabledChoice, kernel, operation, schedule, shape, ms, static_ms)

namespace {

constexpr int kSchema = 1;

bool before(const TabledChoice& a, const TabledChoice& b) {
    return std::tie(a.kernel, a.operation) < std::tie(b.kernel, b.operation);
}

}  // namespace

bool ChoiceTable::covers(const Target& target) const {
    return target.name == architecture && std::any_of(devices.begin(), devices.end(), [&](const std::string& device) {
               return target.label.starts_with(device);
           });
}

const TabledChoice* ChoiceTable::find(std::string_view operation) const {
    const auto found = std::find_if(choices.begin(), choices.end(),
                                    [&](const TabledChoice& choice) { return choice.operation == operation; });
    return found == choices.end() ? nullptr : &*found;
}

void ChoiceTable::put(TabledChoice choice) {
    remove(choice.operation);
    choices.insert(std::upper_bound(choices.begin(), choices.end(), choice, before), std::move(choice));
}

void ChoiceTable::remove(std::string_view operation) {
    std::erase_if(choices, [&](const TabledChoice& choice) { return choice.operation == operation; });
}

std::string print(const ChoiceTable& table) {
    const nlohmann::ordered_json head = {{"schema", kSchema},
                                         {"architecture", table.architecture},
                                         {"devices", table.devices},
                                         {"toolchain", table.toolchain}};
    std::string text = head.dump();
    text.pop_back();  // the closing brace
    text += ", \"choices\": [";
    for (std::size_t i = 0; i < table.choices.size(); ++i)
        text += (i == 0 ? "\n" : ",\n") + nlohmann::json(table.choices[i]).dump();
    return text + "\n]}\n";
}

ChoiceTable parse_choice_table(std::string_view text, const std::string& source_name) try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("schema") != kSchema) fail(ErrorCode::kParse, "'{}': its schema is not {}", source_name, kSchema);
    ChoiceTable table;
    json.at("architecture").get_to(table.architecture);
    json.at("devices").get_to(table.devices);
    json.at("toolchain").get_to(table.toolchain);
    json.at("choices").get_to(table.choices);
    std::sort(table.choices.begin(), table.choices.end(), before);
    return table;
} catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kParse, "'{}' is no table of choices: {}", source_name, error.what());
}

ChoiceTable read_choice_table(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file || text.empty())
        fail(ErrorCode::kIo, "table of choices '{}' cannot be read; check the path and its permissions", path);
    return parse_choice_table(text, path);
}

const std::vector<ChoiceTable>& shipped_choices() {
    static const std::vector<ChoiceTable> tables = {
        parse_choice_table(embedded::choices_h100, "choices_h100.json"),
        parse_choice_table(embedded::choices_h200, "choices_h200.json"),
        parse_choice_table(embedded::choices_sm_90a, "choices_sm_90a.json")};
    return tables;
}

}  // namespace rowjit
