#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/unscale_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the unscaling kernel inside this binary.
struct UnscaleBuild {
  CpuTier tier;
  UnscaleKernel* run;
};

/// Best first; the last runs on any CPU.
const std::vector<UnscaleBuild>& unscale_builds();

/// Adjacent values in this machine's memory.
struct Values {
  void* data;
  Element element;
  int64_t count;
};

/// Multiplies all values in place by `inv_scale` with one build, which this CPU must be able to run, and returns whether
/// one of them was inf or nan before: see UnscaleKernel. No two of `all` share memory. All together are one parallel
/// region, so that many small ones cost little more than one large one.
///
/// Threads: at::get_num_threads() of them.
bool unscale(const std::vector<Values>& all, float inv_scale, const UnscaleBuild& build);

}  // namespace mantissa::kernels::cpu
