#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace mantissa {

/// A module that takes one tensor and returns one tensor. The registry makes such modules, and a training
/// loop can call one without knowing which network it is.
class TensorModule : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

}  // namespace mantissa
