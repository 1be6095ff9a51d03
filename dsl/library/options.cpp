#include "dsl/library/options.h"

#include <array>
#include <charconv>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/fail.h"

namespace rowjit {
namespace {

template <class T>
std::optional<T> parsed(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

bool is_word_of(std::string_view words, std::string_view word) {
    while (!words.empty()) {
        const std::size_t end = words.find(' ');
        if (words.substr(0, end) == word) return true;
        words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
    }
    return false;
}

// What a value of this option looks like, or nothing when `text` is one.
std::optional<std::string> complaint(const OptionInfo& option, std::string_view text) {
    switch (option.type) {
        case OptionType::kFlag:
            if (text == "true" || text == "false") return std::nullopt;
            return "true or false";
        case OptionType::kInteger:
            if (parsed<std::int64_t>(text)) return std::nullopt;
            return "a 64-bit integer";
        case OptionType::kNumber:
            if (parsed<double>(text)) return std::nullopt;
            return "a number";
        case OptionType::kChoice:
            if (is_word_of(option.choices, text)) return std::nullopt;
            return fmt::format("one of: {}", option.choices);
    }
    RJ_CHECK(false, "option type {}", static_cast<int>(option.type));
}

[[noreturn]] void fail_unknown(std::string_view op, std::string_view name, std::span<const OptionInfo> known) {
    std::vector<std::string_view> names;
    for (const OptionInfo& option : known) names.push_back(option.name);
    if (names.empty()) fail(ErrorCode::kInvalidArgument, "{}: unknown option '{}'; it has none here", op, name);
    fail(ErrorCode::kInvalidArgument, "{}: unknown option '{}'; known: {}", op, name, fmt::join(names, ", "));
}

}  // namespace

std::string_view name(OptionType type) {
    constexpr std::array<std::string_view, 4> kNames = {"flag", "integer", "number", "choice"};
    return kNames.at(static_cast<std::size_t>(type));
}

OptionValues::OptionValues(std::string_view op, std::span<const OptionInfo> known, const OptionMap& given) {
    for (const OptionInfo& option : known) values_[std::string(option.name)] = option.default_value;
    for (const auto& [name, text] : given) {
        const OptionInfo* option = nullptr;
        for (const OptionInfo& candidate : known) {
            if (candidate.name == name) option = &candidate;
        }
        if (option == nullptr) fail_unknown(op, name, known);
        if (const auto expected = complaint(*option, text)) {
            fail(ErrorCode::kInvalidArgument, "{}: option {} is '{}'; give {}", op, name, text, *expected);
        }
        values_[name] = text;
    }
}

const std::string& OptionValues::value(std::string_view name) const {
    const auto found = values_.find(name);
    RJ_CHECK(found != values_.end(), "option {} is read and stands in no table", name);
    return found->second;
}

bool OptionValues::flag(std::string_view name) const { return value(name) == "true"; }
std::string_view OptionValues::choice(std::string_view name) const { return value(name); }
std::int64_t OptionValues::integer(std::string_view name) const { return parsed<std::int64_t>(value(name)).value(); }
double OptionValues::number(std::string_view name) const { return parsed<double>(value(name)).value(); }

std::optional<double> OptionValues::optional_number(std::string_view name) const { return parsed<double>(value(name)); }

std::optional<Dtype> OptionValues::optional_dtype(std::string_view name) const {
    if (value(name).empty()) return std::nullopt;
    return parse_dtype(value(name));
}

}  // namespace rowjit
