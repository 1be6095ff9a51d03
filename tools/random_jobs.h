// Jobs chosen at random for `rowjit verify --random`. The widths, dtypes and options at which tests hold an operation
// to the bar are fixed ones, one option beside the default at a time; a kernel that is wrong at another width, or where
// two options meet, is found by searching. What is drawn depends on the seed and the restrictions alone, so that a
// search repeats on every device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/job.h"

namespace rowjit {

struct RandomJob {
    Job job;
    std::uint64_t seed;  // of its inputs
    std::string words;   // of a command line: "--op rope --columns 6 --dtype f16 --option heads=3 --seed 81726"
};

// What a launch of a drawn job moves at most where --max-bytes says nothing: no device's own default, on which the jobs
// would depend. A row of 262144 f32 columns of an operation with one input and one output fits.
inline constexpr std::int64_t kRandomMaxBytes = std::int64_t{32} << 20;

// `count` jobs: an operation, each of its options at the default or at another legal value, a width, a dtype of bf16,
// f16 and f32, of options too, and its forward, its backward or both in one pass. Where `within` names operations,
// columns, dtypes, options or a pass, those alone are drawn. A launch of `rows` rows moves no more than
// `within.max_bytes`. What an operation refuses is drawn again. The first of `count` jobs are those of a smaller count.
//
// Throws Error(kInvalidArgument) for a model or a graph, and where nothing within the restrictions is legal.
std::vector<RandomJob> draw_jobs(const JobOptions& within, std::int64_t count, std::uint64_t seed, std::int64_t rows);

// The values of an operation's integer or number option that are drawn, separated by spaces; "" where no row has it.
std::string_view drawn_values(std::string_view op, std::string_view option);

// What models have, of an operation whose columns are these (CompositeInfo::columns); none for columns without a row.
std::vector<std::int64_t> model_widths(std::string_view columns);

}  // namespace rowjit
