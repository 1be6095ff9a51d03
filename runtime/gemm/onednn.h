// Products of bf16 on the CPU by oneDNN, opened at run time, on processors that have instructions for them: an Intel
// server's tiles (AMX) make them at four times the rate at which OpenBLAS makes those of f32.
#pragma once

#include <memory>
#include <string>

#include "base/declined.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/gemm/gemm.h"

namespace rowjit {

// Null where the operands are not both bf16, or there is no oneDNN that multiplies them here. Denormal operands count
// as zero, as those instructions have it. Results do not depend on the number of workers.
std::unique_ptr<Gemm> make_onednn_gemm(const GemmType& type, const CpuWorkers& workers);

// The library's file; declined with what stands in the way.
Offer<std::string> onednn_path();

}  // namespace rowjit
