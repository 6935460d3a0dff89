#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/unscale_kernel.h"

namespace mantissa::kernels::cpu {

/// One compiled version of the unscaling kernel, which divides gradients by the loss scale.
struct UnscaleBuild {
  CpuTier tier;
  UnscaleKernel* run;
};

/// Returns all builds, the best one first. The last one runs on any CPU.
const std::vector<UnscaleBuild>& unscale_builds();

/// A contiguous array of values in the CPU's memory.
struct Values {
  void* data;
  Element element;
  int64_t count;
};

/// Multiplies all values by `inv_scale` in place. This CPU must be able to run `build`. Returns true if any
/// value was inf or nan before (see UnscaleKernel). No two elements of `all` may share memory.
/// One parallel region processes them all, so that many small tensors take little longer than one large tensor.
///
/// Threads: uses up to at::get_num_threads() threads.
bool unscale(const std::vector<Values>& all, float inv_scale, const UnscaleBuild& build);

}  // namespace mantissa::kernels::cpu
