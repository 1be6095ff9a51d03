#include "dsl/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"

namespace rowjit {
namespace {

// Indices and truths are one thing or another; codes are numbers, and may fall to either side of a step.
bool is_number(Dtype dtype) { return is_float(dtype) || is_storage(dtype); }

// Beyond this much, eager has lost the element to cancellation. Of the f32 before the last rounding it is more than
// functions of large arguments lose, and a narrow output may not show it: of 60 rows' mean of 264 columns one is
// outside by two units of bf16 where eager's worst is off by 0.2, in launches whose f32 errors are alike.
constexpr double kChanceUlps = 2;
constexpr double kChanceUlpsUnrounded = 256;
constexpr double kMaxAllowance = 1;

bool same_class(double got, double eager) {
    if (std::isnan(eager)) return std::isnan(got);
    if (std::isinf(eager)) return got == eager;
    return std::isfinite(got);
}

bool measurable(double exact, double eager) { return std::isfinite(exact) && std::isfinite(eager); }

// The oracle's own precision is f64's: of sums in another order it cannot say which is nearer.
constexpr double kOraclePrecision = 1e-14;

double cancellation_noise(const Tensor& exact, const Tensor& eager, Dtype dtype) {
    double noise = 0;
    for (std::size_t i = 0; i < exact.values.size(); ++i) {
        if (!measurable(exact.values[i], eager.values[i])) continue;
        if (dtype == Dtype::kF64) noise = std::max(noise, kOraclePrecision * std::abs(exact.values[i]));
        const double error = std::abs(eager.values[i] - exact.values[i]);
        if (error > kChanceUlps * ulp(dtype, exact.values[i])) noise = std::max(noise, error);
        if (eager.unrounded.empty() || !std::isfinite(eager.unrounded[i])) continue;
        const double before = std::abs(eager.unrounded[i] - exact.values[i]);
        if (before > kChanceUlpsUnrounded * ulp(Dtype::kF32, exact.values[i])) noise = std::max(noise, before);
    }
    return noise;
}

}  // namespace

// A statistic that is a rounding off moves a whole row by up to half a unit, and a few rows are no average. The mean of
// one element is its error, which may be a whole unit greater.
double mean_allowance(std::int64_t count) {
    return 0.5 + 0.5 / std::sqrt(static_cast<double>(std::max<std::int64_t>(count, 1)));
}

ErrorReport compare(const Tensor& got, const Tensor& exact, const Tensor& eager, Dtype dtype) {
    RJ_CHECK(got.extents == exact.extents && exact.extents == eager.extents &&
                 got.values.size() == exact.values.size() && exact.values.size() == eager.values.size(),
             "compare: tensors of {}, {} and {} values", got.values.size(), exact.values.size(), eager.values.size());
    ErrorReport report;
    report.elements = std::ssize(got.values);
    const double noise = is_number(dtype) ? cancellation_noise(exact, eager, dtype) : 0;
    std::int64_t measured = 0;
    for (std::size_t i = 0; i < got.values.size(); ++i) {
        const double value = got.values[i];
        const double truth = exact.values[i];
        const double reference = eager.values[i];
        double error = 0;
        if (!is_number(dtype)) {
            if (value != reference && value != truth) error = std::numeric_limits<double>::infinity();
        } else if (!same_class(value, reference)) {
            const bool finite = std::isfinite(value) && std::isfinite(truth);
            const bool spared = !std::isfinite(reference) && (finite || value == truth);
            error = !spared          ? std::numeric_limits<double>::infinity()
                    : value == truth ? 0
                                     : std::abs(value - truth) / std::max(ulp(dtype, truth), noise);
        } else if (measurable(truth, reference)) {
            const double unit = std::max(ulp(dtype, truth), noise);
            error = std::abs(value - truth) / unit;
            const double eager_error = std::abs(reference - truth) / unit;
            report.mean_error += error;
            report.eager_mean_error += eager_error;
            report.eager_max_error = std::max(report.eager_max_error, eager_error);
            report.most_off = std::max(report.most_off, std::abs(value - truth));
            report.eager_most_off = std::max(report.eager_most_off, std::abs(reference - truth));
            report.largest = std::max(report.largest, std::abs(truth));
            ++measured;
        }
        if (report.worst_index < 0 || error > report.max_error) {
            report.worst_index = static_cast<std::int64_t>(i);
            report.max_error = error;
            report.got = value;
            report.exact = truth;
            report.eager = reference;
        }
    }
    if (measured > 0) {
        report.mean_error /= static_cast<double>(measured);
        report.eager_mean_error /= static_cast<double>(measured);
    }
    report.compared = is_number(dtype) ? measured : report.elements;
    report.within_bar = report.max_error <= report.eager_max_error + kMaxAllowance &&
                        report.mean_error <= report.eager_mean_error + mean_allowance(measured);
    return report;
}

bool is_as_exact(const ErrorReport& report, const ErrorReport& other) {
    constexpr double kHalfUnit = 0.5;
    return std::isfinite(report.max_error) && report.max_error <= other.max_error + kHalfUnit &&
           report.mean_error <= other.mean_error + kHalfUnit;
}

void append(Tensors launch, Tensors* all) {
    for (auto& [name, tensor] : launch) {
        const auto [whole, first] = all->try_emplace(name, std::move(tensor));
        if (first) continue;
        Tensor& joined = whole->second;
        joined.values.insert(joined.values.end(), tensor.values.begin(), tensor.values.end());
        joined.unrounded.insert(joined.unrounded.end(), tensor.unrounded.begin(), tensor.unrounded.end());
        joined.extents = {std::ssize(joined.values)};
    }
}

std::string describe(const ErrorReport& report) {
    return fmt::format(
        "{} the bar: max {:.3g} ulp (eager {:.3g}), mean {:.3g} (eager {:.3g}), worst at [{}]: got {}, exact {}, eager "
        "{}",
        report.within_bar ? "within" : "outside", report.max_error, report.eager_max_error, report.mean_error,
        report.eager_mean_error, report.worst_index, report.got, report.exact, report.eager);
}

}  // namespace rowjit
