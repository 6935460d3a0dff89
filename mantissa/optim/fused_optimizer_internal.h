#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/optim/fused_optimizer.h"

namespace mantissa {

/// One parameter with everything that its update reads and writes. All but the 0-dim tensors have the
/// parameter's layout.
struct FusedOptimizer::Slot {
  at::Tensor parameter;
  at::Tensor gradient;
  std::vector<at::Tensor> states;
  at::Tensor step;             // 0-dim float32; undefined if the optimizer has no counter
  bool first = false;          // the states were just made; the kernel needs to know
  at::Tensor is_buffer_empty;  // as in SGDParamState
  uint64_t first_draw = 0;     // the number of this parameter's first draw in the optimizer's stream
};

/// One kernel call: tensors of one device, dtype, `first` and `is_buffer_empty`. All lists have the same length.
struct FusedOptimizer::Batch {
  std::vector<at::Tensor> parameters, gradients, steps;
  std::vector<std::vector<at::Tensor>> states;
  bool first = false;
  at::Tensor is_buffer_empty;
  /// Shape: 0-dim float32, on the tensors' device; found_inf is 0 or 1.
  std::optional<at::Tensor> grad_scale, found_inf;

  void add(const at::Tensor& parameter, const at::Tensor& gradient, const std::vector<at::Tensor>& its_states,
           const at::Tensor& step);
};

}  // namespace mantissa
