// Matrix products through cuBLASLt or hipBLASLt, opened at run time. The two libraries share the shape of their
// interface; what differs is a column of lt.def and of the table of constants. Whoever calls has the device current.
#pragma once

#include <memory>
#include <string>

#include "base/declined.h"
#include "base/target.h"
#include "runtime/gemm/gemm.h"

namespace rowjit {

class LtLibrary;

// Opens the library of a GPU vendor and makes a handle for the current device. Declines with what was looked for and
// the remedy.
Offer<std::shared_ptr<const LtLibrary>> open_lt(Backend backend);

// A product whose sides are those of `typical`; a side of 0 comes at launch, and an algorithm is found for every power
// of two of it. Throws Error(kUnsupported) for dtypes that the library does not pair, Error(kEnvironment) where it has
// no algorithm.
std::unique_ptr<Gemm> make_lt_gemm(std::shared_ptr<const LtLibrary> library, const GemmType& type,
                                   const GemmShape& typical);

}  // namespace rowjit
