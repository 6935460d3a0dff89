#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

// How the scaler sees an optimizer's gradients.
namespace mantissa {

/// Gradients of one kind: what _amp_foreach_non_finite_check_and_unscale_ takes at once.
struct GradientGroup {
  at::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

/// The dense values of every gradient once, by device and dtype. fp16 sparse gradients are coalesced first.
std::vector<GradientGroup> gradient_groups(const torch::optim::Optimizer& optimizer);

/// Whether any gradient is fp16.
bool has_fp16_gradients(const torch::optim::Optimizer& optimizer);

inline at::Tensor on_device(const at::Tensor& value, at::Device device) {
  // What is on the CPU the host reads at once, so that copy is waited for.
  return value.device() == device ? value : value.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace mantissa
