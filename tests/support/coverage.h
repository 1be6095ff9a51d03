// Which operations a test goes through: kept as it goes, and held against docs/coverage.json, which `rowjit ops --json`
// shows. So the record says what is tested because tests wrote it, and a test that covers less than the record says
// fails.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "dsl/library/registry.h"

namespace rowjit {

class Coverage {
  public:
    // `test` is the record's key and `checks` its sentence. `in_ci` is how much of it CI does: "all" or "a sample", and
    // ./dev fuzz the rest.
    Coverage(std::string_view test, std::string_view checks, std::string_view target, std::string_view in_ci = "all");

    // The operation was tested as the request has it, at whatever width.
    void add(std::string_view op, const OpRequest& request);

    // Whether that is what `record`, JSON like docs/coverage.json, says of the test and target; `more_is_fine` where a
    // test may have gone through more.
    bool agrees(std::string_view record, bool more_is_fine) const;

    // "" where what was added is what the record says of the test and target, else what to do: a record that agrees is
    // then beside the build. Where ROWJIT_FUZZ_SEEDS is set a test goes through more than the record says.
    std::string difference() const;

  private:
    std::string test_;
    std::string checks_;
    std::string target_;
    std::string in_ci_;
    // Options as they are given, "default" for none, by operation and dtype.
    std::map<std::string, std::map<std::string, std::set<std::string>>> ops_;
};

// Whether a test goes through everything, as ./dev fuzz has it, rather than the sample that CI takes.
bool takes_everything();

// Whether a test takes its cases from the operation: all, unless it goes through everything and ROWJIT_FUZZ_OPS names
// others.
bool is_taken(std::string_view op);

}  // namespace rowjit
