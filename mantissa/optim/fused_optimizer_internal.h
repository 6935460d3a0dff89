#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/optim/fused_optimizer.h"

namespace mantissa {

/// One parameter and what its update reads and writes. All but the 0-dim tensors have the parameter's layout.
struct FusedOptimizer::Slot {
  at::Tensor parameter;
  at::Tensor gradient;
  std::vector<at::Tensor> states;
  at::Tensor step;          // 0-dim float32; undefined where the optimizer counts none
  bool first = false;       // the states were just made, which the kernel must be told
  at::Tensor unstarted;     // as SGDParamState's
  uint64_t first_draw = 0;  // of this parameter in the optimizer's stream
};

/// One kernel call: tensors of one device, dtype, `first` and `unstarted`, each list as long as the first.
struct FusedOptimizer::Batch {
  std::vector<at::Tensor> parameters, gradients, steps;
  std::vector<std::vector<at::Tensor>> states;
  bool first = false;
  at::Tensor unstarted;
  /// Shape: 0-dim float32, on the tensors' device; found_inf is 0 or 1.
  std::optional<at::Tensor> grad_scale, found_inf;

  void add(const at::Tensor& parameter, const at::Tensor& gradient, const std::vector<at::Tensor>& its_states,
           const at::Tensor& step);
};

}  // namespace mantissa
