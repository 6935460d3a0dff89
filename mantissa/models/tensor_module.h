#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace mantissa {

/// A module that takes one tensor and gives one tensor: what the registry makes and a loop can call without
/// knowing which network it trains.
class TensorModule : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

}  // namespace mantissa
