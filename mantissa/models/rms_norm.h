#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace mantissa {

/// Divides x by the root of the mean of its squares along the last dimension, and multiplies it by `weight`, which
/// starts at 1.
///
/// Shapes:   [..., size] -> the same.
/// Numerics: a 16-bit input is normalized in float32 and rounded before it is multiplied, as in Hugging Face's Llama.
/// Source:   Zhang and Sennrich 2019, arXiv:1910.07467.
class RmsNormImpl final : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x);

 private:
  double eps_;
  at::Tensor weight_;
};
TORCH_MODULE(RmsNorm);

}  // namespace mantissa
