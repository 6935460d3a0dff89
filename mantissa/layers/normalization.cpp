#include "mantissa/layers/normalization.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>

namespace mantissa {

at::Tensor normalize(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const NormalizationOptions& options) {
  const at::Tensor factor = options.zero_centered_gamma ? weight + 1 : weight;
  if (options.kind == Normalization::kRMSNorm) return at::rms_norm(x, weight.sizes(), factor, options.eps);
  return at::layer_norm(x, weight.sizes(), factor, bias, options.eps);
}

}  // namespace mantissa
