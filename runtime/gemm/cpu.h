// Matrix products on the CPU: OpenBLAS or another library with CBLAS entries, opened at run time; plain loops where
// there is none. Operands of other dtypes than the sums' are converted block by block into the workspace.
#pragma once

#include <memory>
#include <string>

#include "runtime/gemm/gemm.h"

namespace rowjit {

std::unique_ptr<Gemm> make_cpu_gemm(const GemmType& type);

// The library products run in, or why there is none; for `rowjit doctor`.
std::string cpu_gemm_description();

}  // namespace rowjit
