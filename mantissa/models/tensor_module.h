#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace mantissa {

/// A module that takes one tensor and returns one tensor. The registry of models makes such modules, so that
/// a training loop can call any of them.
class TensorModule : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

}  // namespace mantissa
