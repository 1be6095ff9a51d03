// Every environment variable that rowjit reads, in one table: adding one is adding a row in environment.cpp. Values are
// parsed strictly; a name with our prefix that is not in the table is most likely a misspelt one and is warned about.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rowjit {

// The value of a text or path variable; nullopt when it is unset or empty. Like those below it throws Error(kParse),
// naming the variable, its value and what it may hold, when the value does not parse; the name must be in the table.
std::optional<std::string> environment_text(std::string_view name);
std::optional<int> environment_integer(std::string_view name);
std::vector<std::string> environment_paths(std::string_view name);  // unset is none
bool environment_flag(std::string_view name);                       // unset is false

// One row as `rowjit doctor` prints it.
struct EnvironmentReport {
    std::string name;
    std::string meaning;
    std::string accepts;       // "an absolute path, or off"
    std::string default_text;  // what holds when it is unset
    std::optional<std::string> value;
    std::string problem;  // why the value is refused, "" when it is not
};
std::vector<EnvironmentReport> environment_report();

// Set variables that begin with ROWJIT_ and are not in the table.
std::vector<std::string> unknown_environment_names();

// Throws Error(kParse) for the first value that does not parse and warns once of every unknown name. An engine and the
// command line call it first, so that a mistake is said at the start and not at the first use.
void check_environment();

}  // namespace rowjit
