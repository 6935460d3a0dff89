#include "mantissa/models/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>

namespace mantissa {

RmsNormImpl::RmsNormImpl(int64_t size, double eps) : eps_(eps) {
  weight_ = register_parameter("weight", at::ones({size}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  const at::Tensor wide = dtype == at::kHalf || dtype == at::kBFloat16 ? x.to(at::kFloat) : x;
  const at::Tensor normalized = wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps_);
  return weight_ * normalized.to(dtype);
}

}  // namespace mantissa
