#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/gemm_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the product kernel inside this binary.
struct GemmBuild {
  CpuTier tier;
  GemmKernel* run;
  int64_t mr, nr;  ///< parts of a result begin at multiples of these, and end there unless they are the last
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<GemmBuild>& gemm_builds();

/// Computes `g` with one build, which this CPU must be able to run: see Gemm and GemmPart.
///
/// Threads: at::get_num_threads() threads in one parallel region. The calling thread computes alone inside
///          another parallel region, or if the work would not pay for waking others. Results do not depend on
///          the number of threads.
/// Memory:  at most 2.2 MiB per thread, kept until the thread ends.
void gemm(const Gemm& g, const GemmBuild& build);

}  // namespace mantissa::kernels::cpu
