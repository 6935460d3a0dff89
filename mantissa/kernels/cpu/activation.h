#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/cpu/activation_kernel.h"

namespace mantissa::kernels::cpu {

/// A build of the activation kernels inside this binary.
struct ActivationBuild {
  CpuTier tier;
  ActivateKernel* run;
  ActivateBackwardKernel* run_backward;
};

/// The best build comes first; the last one runs on any CPU.
const std::vector<ActivationBuild>& activation_builds();

/// Computes in parallel with one build, which this CPU must be able to run: see ActivateKernel.
///
/// Threads: at::get_num_threads() threads, if there is enough work to wake them.
void activate(Activation activation, Element element, const void* x, void* out, int64_t count,
              const ActivationBuild& build);
void activate_backward(Activation activation, Element element, const void* gradient, const void* x, void* out,
                       int64_t count, const ActivationBuild& build);

}  // namespace mantissa::kernels::cpu
