// What the commands print. Results go to standard output, as a table or, with --json, as one document; progress and
// messages go to standard error.
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rowjit {

// A table of left-aligned text columns, numbers right-aligned when every cell of the column is one.
class Table {
  public:
    explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    std::string text() const;

  private:
    std::vector<std::vector<std::string>> rows_;
};

// A bar with the time left on a terminal; a line per finished job elsewhere. Colour only on a terminal without
// NO_COLOR.
class Progress {
  public:
    explicit Progress(std::size_t jobs);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void start(const std::string& job);
    void step(const std::string& detail, int done, int total);  // within the job
    void finish(const std::string& outcome);

  private:
    void draw(double within, const std::string& detail);
    bool terminal_;
    bool colour_;
    std::size_t jobs_;
    std::size_t done_ = 0;
    std::string job_;
    std::chrono::steady_clock::time_point started_;
};

// A message of several lines, as a toolchain's may be, on one.
std::string one_line(std::string_view message);

// The result of a command that has one text: the document with --json.
void print_either(bool json, const nlohmann::json& document, const std::string& text);

// Infinities and NaN, which JSON cannot hold, become null.
nlohmann::json json_number(double value);

}  // namespace rowjit
