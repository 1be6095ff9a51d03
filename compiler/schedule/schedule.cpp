#include "compiler/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace rowjit {
namespace {

constexpr std::array<std::string_view, 4> kFamilies = {"elementwise", "row_reduction", "rows_reduction", "order"};
constexpr std::array<std::string_view, 4> kResidencies = {"registers", "shared", "reload", "stages"};

// The integer fields of the text form.
struct Field {
    std::string_view name;
    std::int64_t (*get)(const Schedule&);
    void (*set)(Schedule*, std::int64_t);
};

constexpr std::array kFields = {
    Field{"threads", [](const Schedule& s) -> std::int64_t { return s.threads_per_row; },
          [](Schedule* s, std::int64_t v) { s->threads_per_row = static_cast<int>(v); }},
    Field{"rows", [](const Schedule& s) -> std::int64_t { return s.rows_per_block; },
          [](Schedule* s, std::int64_t v) { s->rows_per_block = static_cast<int>(v); }},
    Field{"vector", [](const Schedule& s) -> std::int64_t { return s.vector; },
          [](Schedule* s, std::int64_t v) { s->vector = static_cast<int>(v); }},
    Field{"peel", [](const Schedule& s) -> std::int64_t { return s.peel ? 1 : 0; },
          [](Schedule* s, std::int64_t v) { s->peel = v != 0; }},
    Field{"column_blocks", [](const Schedule& s) -> std::int64_t { return s.column_blocks; },
          [](Schedule* s, std::int64_t v) { s->column_blocks = v; }},
    Field{"online", [](const Schedule& s) -> std::int64_t { return s.online ? 1 : 0; },
          [](Schedule* s, std::int64_t v) { s->online = v != 0; }},
    Field{"prefetch", [](const Schedule& s) -> std::int64_t { return s.prefetch ? 1 : 0; },
          [](Schedule* s, std::int64_t v) { s->prefetch = v != 0; }},
    Field{"stages", [](const Schedule& s) -> std::int64_t { return s.stages; },
          [](Schedule* s, std::int64_t v) { s->stages = static_cast<int>(v); }},
    Field{"ahead", [](const Schedule& s) -> std::int64_t { return s.ahead; },
          [](Schedule* s, std::int64_t v) { s->ahead = static_cast<int>(v); }},
    Field{"skew", [](const Schedule& s) -> std::int64_t { return s.skew ? 1 : 0; },
          [](Schedule* s, std::int64_t v) { s->skew = v != 0; }},
    Field{"across", [](const Schedule& s) -> std::int64_t { return s.across ? 1 : 0; },
          [](Schedule* s, std::int64_t v) { s->across = v != 0; }},
    Field{"shares", [](const Schedule& s) -> std::int64_t { return s.shares; },
          [](Schedule* s, std::int64_t v) { s->shares = static_cast<int>(v); }},
    Field{"run", [](const Schedule& s) -> std::int64_t { return s.run; },
          [](Schedule* s, std::int64_t v) { s->run = static_cast<int>(v); }},
    Field{"blocks_per_sm", [](const Schedule& s) -> std::int64_t { return s.blocks_per_sm; },
          [](Schedule* s, std::int64_t v) { s->blocks_per_sm = static_cast<int>(v); }},
    Field{"min_blocks", [](const Schedule& s) -> std::int64_t { return s.min_blocks_per_sm; },
          [](Schedule* s, std::int64_t v) { s->min_blocks_per_sm = static_cast<int>(v); }},
};

template <class Names>
std::optional<std::size_t> find(const Names& names, std::string_view text) {
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (names[i] == text) return i;
    }
    return std::nullopt;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
    return value;
}

bool power_of_two(std::int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

constexpr int kLeastWarp = 32;  // of all targets

bool valid(const Schedule& s) {
    return may_share_row(s, kLeastWarp) && power_of_two(s.vector) && s.rows_per_block > 0 && s.column_blocks > 0 &&
           std::int64_t{s.threads_per_row} * s.rows_per_block <= 1024 && s.vector <= 256 && s.stages <= kMostStages &&
           s.ahead <= kMostRowsAhead && (s.shares == 0 || s.rows_per_block % s.shares == 0) && s.run > 0 &&
           s.run <= kMostOfRun && (s.run == 1 || s.shares > 0) && !(s.prefetch && s.stages > 0);
}

}  // namespace

std::string_view name(Family family) { return kFamilies[static_cast<std::size_t>(family)]; }
std::string_view name(Residency residency) { return kResidencies[static_cast<std::size_t>(residency)]; }

bool fills_warps(int threads, int warp_size) {
    return threads > warp_size ? threads % warp_size == 0 : power_of_two(threads);
}

bool may_share_row(const Schedule& schedule, int warp_size) {
    const bool never_meet = schedule.family == Family::kElementwise && schedule.threads_per_row > 0;
    return never_meet || fills_warps(schedule.threads_per_row, warp_size);
}

int rows_side_by_side(std::int64_t positions, int threads_per_row, int warp_size) {
    constexpr int kBlockThreads = 128;
    for (int rows = std::max(1, kBlockThreads / threads_per_row); rows > 0; --rows) {
        if (positions % rows == 0 && rows * threads_per_row % warp_size == 0) return rows;
    }
    // Few positions, each several times, as of 16 heads that have a number each.
    constexpr int kMostThreads = 1024;
    int found = 0;
    for (std::int64_t rows = positions; rows * threads_per_row <= kMostThreads; rows += positions) {
        if (rows * threads_per_row % warp_size != 0) continue;
        if (found > 0 && rows * threads_per_row > kBlockThreads) break;
        found = static_cast<int>(rows);
    }
    return found;
}

int vector_dividing(std::int64_t columns, int limit) {
    int vector = 1;
    while (vector * 2 <= limit && columns % (vector * 2) == 0) vector *= 2;
    return vector;
}

std::string print(const Schedule& schedule) {
    std::string text = fmt::format("{} keep={}", name(schedule.family), name(schedule.residency));
    const Schedule defaults;
    for (const Field& field : kFields) {
        if (field.get(schedule) != field.get(defaults)) text += fmt::format(" {}={}", field.name, field.get(schedule));
    }
    return text;
}

std::optional<Schedule> parse_schedule(std::string_view text) {
    Schedule schedule;
    bool first = true;
    while (!text.empty()) {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), word.size() + 1));
        if (first) {
            const auto family = find(kFamilies, word);
            if (!family) return std::nullopt;
            schedule.family = static_cast<Family>(*family);
            first = false;
            continue;
        }
        const std::size_t equals = word.find('=');
        if (equals == std::string_view::npos) return std::nullopt;
        const std::string_view key = word.substr(0, equals);
        const std::string_view value = word.substr(equals + 1);
        if (key == "keep") {
            const auto residency = find(kResidencies, value);
            if (!residency) return std::nullopt;
            schedule.residency = static_cast<Residency>(*residency);
            continue;
        }
        const auto number = parse_integer(value);
        bool known = false;
        for (const Field& field : kFields) {
            if (field.name != key || !number) continue;
            field.set(&schedule, *number);
            known = true;
        }
        if (!known) return std::nullopt;
    }
    if (first || !valid(schedule)) return std::nullopt;
    return schedule;
}

}  // namespace rowjit
