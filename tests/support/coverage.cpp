#include "tests/support/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/environment.h"

namespace rowjit {
namespace {

constexpr const char* kRecord = ROWJIT_SOURCE_DIR "/docs/coverage.json";
constexpr const char* kMended = ROWJIT_BINARY_DIR "/coverage.json";

std::string text_in(const char* path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The mended record is written by several test programs, each its own section: one goes on from what those before it
// left, unless the record is the newer of the two.
const char* base_of_mended() {
    std::error_code absent;
    const auto mended = std::filesystem::last_write_time(kMended, absent);
    return absent || mended < std::filesystem::last_write_time(kRecord) ? kRecord : kMended;
}

bool has(const nlohmann::json& list, const nlohmann::json& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

// A line for every operation of a test, so that a change shows as one.
std::string text_of(const nlohmann::json& record) {
    std::string text = "{";
    for (const auto& [test, section] : record.items()) {
        text += fmt::format("{}\n  {}: {{\n", text.size() > 1 ? "," : "", nlohmann::json(test).dump());
        for (const char* field : {"checks", "in_ci", "targets"})
            text += fmt::format("    \"{}\": {},\n", field, section.at(field).dump());
        text += "    \"ops\": {";
        std::string_view comma;
        for (const auto& [op, dtypes] : section.at("ops").items()) {
            text += fmt::format("{}\n      \"{}\": {}", comma, op, dtypes.dump());
            comma = ",";
        }
        text += "\n    }\n  }";
    }
    return text + "\n}\n";
}

// Whether every option of every dtype and operation in `less` is in `more`.
bool holds(const nlohmann::json& more, const nlohmann::json& less) {
    for (const auto& [op, dtypes] : less.items()) {
        for (const auto& [dtype, options] : dtypes.items()) {
            if (!more.contains(op) || !more[op].contains(dtype)) return false;
            const nlohmann::json& known = more[op][dtype];
            if (!std::all_of(options.begin(), options.end(), [&](const auto& one) { return has(known, one); }))
                return false;
        }
    }
    return true;
}

}  // namespace

Coverage::Coverage(std::string_view test, std::string_view checks, std::string_view target, std::string_view in_ci)
    : test_(test), checks_(checks), target_(target), in_ci_(in_ci) {}

void Coverage::add(std::string_view op, const OpRequest& request) {
    std::string options;
    for (const auto& [name, value] : request.options)
        options += fmt::format("{}{}={}", options.empty() ? "" : " ", name, value);
    ops_[std::string(op)][std::string(name(request.dtype))].insert(options.empty() ? "default" : options);
}

bool Coverage::agrees(std::string_view record, bool more_is_fine) const {
    const nlohmann::json all = nlohmann::json::parse(record);
    if (!all.contains(test_)) return false;
    const nlohmann::json& section = all[test_];
    if (section.at("checks") != checks_ || section.at("in_ci") != in_ci_ || !has(section.at("targets"), target_))
        return false;
    const nlohmann::json covered = ops_;
    return more_is_fine ? holds(covered, section.at("ops")) : covered == section.at("ops");
}

std::string Coverage::difference() const {
    if (agrees(text_in(kRecord), takes_everything())) return "";
    nlohmann::json all = nlohmann::json::parse(text_in(base_of_mended()));
    nlohmann::json& section = all[test_];
    section["checks"] = checks_;
    section["in_ci"] = in_ci_;
    section["ops"] = ops_;
    nlohmann::json& targets = section["targets"];
    if (!has(targets, target_)) targets.push_back(target_);
    std::ofstream(kMended) << text_of(all);
    return fmt::format("{} on {} is not what docs/coverage.json says: copy {} over it", test_, target_, kMended);
}

bool takes_everything() { return std::getenv("ROWJIT_FUZZ_SEEDS") != nullptr; }

bool is_taken(std::string_view op) {
    const std::optional<std::string> names = environment_text("ROWJIT_FUZZ_OPS");
    if (!names || !takes_everything()) return true;
    return fmt::format(",{},", *names).find(fmt::format(",{},", op)) != std::string::npos;
}

}  // namespace rowjit
