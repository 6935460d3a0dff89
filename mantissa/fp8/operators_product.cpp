#include <limits>
#include <variant>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/quantizer_internal.h"

namespace mantissa::fp8::operators {
namespace {

/// Returns the restored values as [rows, length], with the padding of the length.
at::Tensor matrix_of(const Fp8Factor& factor) {
  const at::Tensor values =
      std::visit([](const auto& quantized) { return restored(quantized); }, factor.quantized);
  return (factor.is_transposed ? values.t() : values).narrow(0, 0, factor.rows);
}

at::Tensor scale_of(const Fp8Factor& factor) {
  return std::visit([](const auto& quantized) { return scale_inv_of(quantized); }, factor.quantized);
}

}  // namespace

void scale_sums(const at::Tensor& sums, const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor both = (one * other).to(at::kFloat);
  const at::Tensor is_normal = at::isfinite(both).logical_and(both >= std::numeric_limits<float>::min());
  sums.mul_(at::where(is_normal, both, at::maximum(one, other).to(at::kFloat)));
  sums.mul_(at::where(is_normal, 1.0F, at::minimum(one, other).to(at::kFloat)));
}

at::Tensor product(const Fp8Factor& a, const Fp8Factor& b, const at::Tensor& bias, at::ScalarType dtype) {
  const at::NoTF32Guard no_tf32;  // scales of blocks have more digits than TF32
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor sums = at::mm(matrix_of(a), matrix_of(b).t());
  scale_sums(sums, scale_of(a), scale_of(b));
  if (bias.defined()) sums.add_(bias);
  return sums.to(dtype);
}

}  // namespace mantissa::fp8::operators
