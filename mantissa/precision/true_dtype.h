#pragma once

#include "mantissa/precision/precision.h"

namespace mantissa {

/// "64-true", "16-true" and "bf16-true": weights, activations and gradients all live in one dtype.
///
/// Memory:   the dtype's bytes per weight and again per gradient; no float32 master copy.
/// Numerics: an update below half an ulp of its weight is lost (ulp(1) is 2^-10 in fp16, 2^-7 in bf16), so in
/// 16
///           bits prefer the mixed modes when the learning rate is small. Complex tensors keep their dtype.
/// Source:   spec 1.2, section 6.
class TrueDtype final : public Precision {
 public:
  /// `dtype`: kDouble, kHalf or kBFloat16.
  explicit TrueDtype(at::ScalarType dtype);

  /// Floating-point tensors only: libtorch's Module::to(dtype) would also cast integer buffers, such as
  /// BatchNorm's batch counter.
  void convert_module(torch::nn::Module& module) const override;
  Scope tensor_init_context() const override;
  Scope forward_context() const override { return tensor_init_context(); }
  at::Tensor convert_input(const at::Tensor& x) const override;
  at::Tensor convert_output(const at::Tensor& y) const override;

 private:
  at::ScalarType dtype_;
};

/// `y` in the default dtype if it is of a real floating-point dtype, else `y` itself.
at::Tensor to_default_dtype(const at::Tensor& y);

}  // namespace mantissa
