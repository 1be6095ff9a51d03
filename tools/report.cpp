#include "tools/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace rowjit {
namespace {

constexpr std::size_t kBarWidth = 24;

bool numeric(const std::string& cell) {
    return !cell.empty() && cell.find_first_not_of("0123456789.+-e%") == std::string::npos;
}

// Columns a terminal shows: every byte that does not continue a UTF-8 character.
std::size_t display_width(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string Table::text() const {
    std::vector<std::size_t> widths(rows_[0].size(), 0);
    std::vector<bool> right(rows_[0].size(), rows_.size() > 1);
    for (std::size_t r = 0; r < rows_.size(); ++r) {
        for (std::size_t c = 0; c < rows_[r].size(); ++c) {
            widths[c] = std::max(widths[c], display_width(rows_[r][c]));
            if (r > 0 && !numeric(rows_[r][c])) right[c] = false;
        }
    }
    std::string text;
    for (const auto& row : rows_) {
        std::string line;
        for (std::size_t c = 0; c < row.size(); ++c) {
            const std::string padding(widths[c] - display_width(row[c]), ' ');
            line += (c > 0 ? "  " : "") + (right[c] ? padding + row[c] : row[c] + padding);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

Progress::Progress(std::size_t jobs)
    : terminal_(isatty(STDERR_FILENO) != 0),
      colour_(terminal_ && std::getenv("NO_COLOR") == nullptr),
      jobs_(jobs),
      started_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
    if (terminal_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::start(const std::string& job) {
    job_ = job;
    if (terminal_) draw(0, "");
}

void Progress::step(const std::string& detail, int done, int total) {
    if (terminal_) draw(total > 0 ? static_cast<double>(done) / total : 0, detail);
}

void Progress::finish(const std::string& outcome) {
    ++done_;
    if (terminal_) {
        fmt::print(stderr, "\r\x1b[K");
    }
    fmt::print(stderr, "[{}/{}] {}: {}\n", done_, jobs_, job_, outcome);
}

void Progress::draw(double within, const std::string& detail) {
    const double share = jobs_ == 0 ? 1 : (static_cast<double>(done_) + within) / static_cast<double>(jobs_);
    const auto filled = static_cast<std::size_t>(share * kBarWidth);
    const double elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    const std::string left = share > 0.02 ? fmt::format("{:.0f} s left", elapsed_s / share - elapsed_s) : "";
    fmt::print(stderr, "\r\x1b[K{}[{}{}]{} {}/{} {} {} {}", colour_ ? "\x1b[32m" : "", std::string(filled, '#'),
               std::string(kBarWidth - filled, '.'), colour_ ? "\x1b[0m" : "", done_, jobs_, job_, detail, left);
    std::fflush(stderr);
}

std::string one_line(std::string_view message) {
    std::string line;
    for (const char c : message) {
        if (c == '\n') {
            if (!line.empty() && line.back() != ':') line += ';';
            line += ' ';
        } else if (c != ' ' || line.empty() || line.back() != ' ') {
            line += c;
        }
    }
    return line;
}

void print_either(bool json, const nlohmann::json& document, const std::string& text) {
    fmt::print("{}", json ? document.dump(2) + "\n" : text);
}

nlohmann::json json_number(double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace rowjit
