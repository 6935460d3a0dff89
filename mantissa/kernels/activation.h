#pragma once

#include <cstdint>
#include <vector>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/cpu/activation.h"

namespace mantissa {

/// A build of the activation kernels inside this binary.
struct ActivationBuild {
  CpuTier tier;
  cpu::ActivateKernel* run;
  cpu::ActivateBackwardKernel* run_backward;
};

/// Best first; the last runs on any CPU.
const std::vector<ActivationBuild>& activation_builds();

/// The build that was chosen on this CPU, in parallel: see cpu::ActivateKernel for shapes and numerics.
///
/// Threads: at::get_num_threads() of them, for what is worth waking them.
void activate(cpu::Activation activation, cpu::Element element, const void* x, void* out, int64_t count);
void activate_backward(cpu::Activation activation, cpu::Element element, const void* gradient, const void* x,
                       void* out, int64_t count);

}  // namespace mantissa
