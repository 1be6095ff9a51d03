// Measured choices as a file that goes from one machine to others: what `rowjit tune --export` writes, and what comes
// with rowjit for devices that were measured. A table holds the kernels for which measuring found a schedule that is
// clearly faster than the static rule's; for all others the rule is as good as measuring.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/target.h"

namespace rowjit {

struct TabledChoice {
    std::string kernel;     // for people: the job and the kernel
    std::string operation;  // SHA-256 of tuning_operation(), in hexadecimal
    std::string schedule;   // in text form
    std::string shape;      // that it was measured with
    double ms = 0;
    double static_ms = 0;
};

struct ChoiceTable {
    std::string architecture;          // Target::name
    std::vector<std::string> devices;  // how the names of those begin that it is for
    std::string toolchain;             // that it was measured with
    std::vector<TabledChoice> choices;

    bool covers(const Target& target) const;
    const TabledChoice* find(std::string_view operation) const;

    // Replaces what there is of its operation.
    void put(TabledChoice choice);
    void remove(std::string_view operation);
};

// JSON with a choice on a line, in the order of kernels' names, so that files can be compared.
std::string print(const ChoiceTable& table);

// Throws Error(kParse), naming the source.
ChoiceTable parse_choice_table(std::string_view text, const std::string& source_name);

// The same of a file. Throws Error(kIo) too.
ChoiceTable read_choice_table(const std::string& path);

// The tables that come with rowjit; one of a device comes before one of its architecture.
const std::vector<ChoiceTable>& shipped_choices();

}  // namespace rowjit
