// Options of a composite operation as text: what the command line, a .rj file and a model suite write, checked against
// the rows of the registry before an operation sees them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rowjit/dtype.h"

namespace rowjit {

enum class OptionType : std::uint8_t {
    kFlag,     // true or false
    kInteger,  // a 64-bit integer
    kNumber,   // a decimal number; what no launch could use is refused by the operation, by name
    kChoice,   // one of the listed words
};

std::string_view name(OptionType type);  // "flag", "integer", "number", "choice"

struct OptionInfo {
    std::string_view name;
    OptionType type;
    std::string_view default_value;  // "" when the option is absent by default
    std::string_view choices;        // kChoice: the words, separated by spaces
    // Chooses the inputs or extents of the op's canonical graph. A call on given operands has no such option.
    bool of_graph;
    std::string_view meaning;
};

using OptionMap = std::map<std::string, std::string, std::less<>>;

class OptionValues {
  public:
    // `given` over the defaults of `known`. Throws Error(kInvalidArgument) naming `op`, the option or value that is not
    // known, and those that are.
    OptionValues(std::string_view op, std::span<const OptionInfo> known, const OptionMap& given);

    bool flag(std::string_view name) const;
    std::int64_t integer(std::string_view name) const;
    double number(std::string_view name) const;
    std::string_view choice(std::string_view name) const;
    std::optional<double> optional_number(std::string_view name) const;
    std::optional<Dtype> optional_dtype(std::string_view name) const;

  private:
    const std::string& value(std::string_view name) const;
    OptionMap values_;
};

}  // namespace rowjit
