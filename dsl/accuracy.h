// The bar of every op, dtype and target: as exact as the framework's own rounding allows, measured against the oracle.
#pragma once

#include <cstdint>
#include <string>

#include "dsl/tensor.h"

namespace rowjit {

// Errors are counted per element in units in the last place of the output's dtype at the exact value:
//
//     error(v) = |v − exact| / unit,   unit = max(ulp(dtype, exact), noise)
//
// Where eager itself is more than two ulps off, or the f32 that it rounds to a narrow output more than 256 of f32's, an
// element is the small difference of large terms, and how many ulps of the small result are lost is chance, for eager
// and for a kernel alike. `noise` is the largest absolute error of eager among those elements, 0 when there are none; a
// kernel may lose what eager loses there, and no more than that. Of f64, which is what the oracle computes in, it is at
// least 1e-14 of the largest exact value.
//
// Within the bar:
//   - max error  ≤ eager's max error + 1 unit;
//   - mean error ≤ eager's mean error + 1/2 (1 + 1/√n) units over n elements: half a unit is what one rounding of a
//     row's statistic does to all of the row, and the mean of one element is its error;
//   - NaN exactly where eager has NaN, infinities equal to eager's, and finite where eager is finite. Where eager only
//     overflowed on its way, as a mean of 3e38 does that is summed before it is divided, the exact result will do too,
//     finite or infinite;
//   - integers and bools equal to eager's or to the exact value.
// Elements that are not finite take part in no mean.
struct ErrorReport {
    double max_error = 0;  // in units; infinite where NaN, infinities or integers differ
    double mean_error = 0;
    double eager_max_error = 0;
    double eager_mean_error = 0;
    double most_off = 0;            // the largest |v − exact|, of finite elements
    double eager_most_off = 0;      // likewise eager's
    double largest = 0;             // the largest |exact| of them
    std::int64_t worst_index = -1;  // row-major; -1 when there are no elements
    double got = 0;                 // the values at worst_index
    double exact = 0;
    double eager = 0;
    std::int64_t elements = 0;
    std::int64_t compared = 0;  // of them: neither NaN nor infinite, exact and eager, or no floats at all
    bool within_bar = true;
};

// All three of one shape; exact and eager are the interpreter's (dsl/interpret.h).
ErrorReport compare(const Tensor& got, const Tensor& exact, const Tensor& eager, Dtype dtype);

// Whether one is at most half a unit further from what is exact than the other, of the same elements.
bool is_as_exact(const ErrorReport& report, const ErrorReport& other);

// How far the mean error of n elements may be beyond eager's.
double mean_allowance(std::int64_t count);

// Puts the elements of one launch's tensors behind those of the launches before, to be compared as one tensor. How far
// eager is from one number, as a loss is, is a single draw; the largest error of several launches is a measure.
void append(Tensors launch, Tensors* all);

// "max 1.3 ulp (eager 0.5), mean …, worst at [2]: got …, exact …, eager …", for test messages.
std::string describe(const ErrorReport& report);

}  // namespace rowjit
