#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

// The scaler's view of an optimizer's gradients.
namespace mantissa {

/// Gradients of one kind, which one call of _amp_foreach_non_finite_check_and_unscale_ can process.
struct GradientGroup {
  at::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

/// Returns the dense values of every gradient once, grouped by device and dtype. Coalesces fp16 sparse
/// gradients first.
std::vector<GradientGroup> gradient_groups(const torch::optim::Optimizer& optimizer);

/// Whether any gradient is fp16.
bool has_fp16_gradients(const torch::optim::Optimizer& optimizer);

inline at::Tensor on_device(const at::Tensor& value, at::Device device) {
  // The host reads a value on the CPU at once, so a copy to the CPU must be waited for.
  return value.device() == device ? value : value.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace mantissa
