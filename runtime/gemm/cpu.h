// Matrix products on the CPU: OpenBLAS or another library with CBLAS entries, opened at run time; plain loops where
// there is none. Operands of other dtypes than the sums' are converted block by block into the workspace, except bf16
// where oneDNN multiplies it (onednn.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu/thread_pool.h"
#include "runtime/gemm/gemm.h"

namespace rowjit {

// `workers` take part where the library leaves a product's blocks to its caller.
std::unique_ptr<Gemm> make_cpu_gemm(const GemmType& type, const CpuWorkers& workers = {});

struct CpuGemmLibrary {
    std::string operands;  // dtypes
    bool found = false;
    std::string what;  // the file, or what products run in without it and the remedy
};

std::vector<CpuGemmLibrary> cpu_gemm_libraries();

}  // namespace rowjit
