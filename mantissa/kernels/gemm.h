#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa {

/// A build of the product kernel inside this binary.
struct GemmBuild {
  CpuTier tier;
  cpu::GemmKernel* run;
  int64_t tile_rows,
      tile_cols;  ///< parts of a result that are not its last begin and end at multiples of these
};

/// Best first; the last runs on any CPU.
const std::vector<GemmBuild>& gemm_builds();

/// Computes `g` with the build that was chosen for such products on this CPU: see cpu::Gemm for shapes and
/// numerics.
///
/// Threads: at::get_num_threads() of them in one parallel region, or the calling one alone inside another
///          region or where the work would not pay for waking them. Results do not depend on their number.
/// Memory:  at most 2.2 MiB per thread, kept until the thread ends.
void gemm(const cpu::Gemm& g);

/// The same with one build, which this CPU must be able to run.
void gemm(const cpu::Gemm& g, const GemmBuild& build);

}  // namespace mantissa
