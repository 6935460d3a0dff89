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
  int64_t mr, nr;  ///< parts of a result begin and end at multiples of these, but for the last parts' ends
};

/// Best first; the last runs on any CPU.
const std::vector<GemmBuild>& gemm_builds();

/// Computes `g` with one build, which this CPU must be able to run: see Gemm and GemmPart.
///
/// Threads: at::get_num_threads() of them in one parallel region, or the calling one alone inside another
///          region or where the work would not pay for waking them. Results do not depend on their number.
/// Memory:  at most 2.2 MiB per thread, kept until the thread ends.
void gemm(const Gemm& g, const GemmBuild& build);

}  // namespace mantissa::kernels::cpu
