#include "mantissa/weights/packed_data.h"

#include <utility>

#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>

namespace mantissa {

at::Tensor PackedData::dequantize_rows(const at::Tensor& rows, at::ScalarType dtype) const {
  return at::index_select(dequantize(dtype), 0, rows);
}

at::Tensor PackedData::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  const std::optional<at::Tensor> maybe_bias = bias.defined() ? std::make_optional(bias) : std::nullopt;
  return at::linear(x, dequantize(x.scalar_type()), maybe_bias);
}

at::Tensor PackedData::multiply_transposed(const at::Tensor& x) const {
  return at::matmul(x, dequantize(x.scalar_type()));
}

at::Device PackedData::device() const {
  const Parts all = parts();
  TORCH_CHECK(!all.empty(), description(),
              ": parts() returned no tensor; a packed weight needs one at least");
  return all.begin()->second.device();
}

size_t PackedData::nbytes() const {
  size_t bytes = 0;
  for (const auto& [name, part] : parts()) bytes += part.nbytes();
  return bytes;
}

PackedDataPtr PackedData::to(at::Device device, bool non_blocking) const {
  Parts moved = parts();
  for (auto& [name, part] : moved) part = part.to(part.options().device(device), non_blocking);
  return with_parts(std::move(moved));
}

bool is_packed_compute_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble;
}

}  // namespace mantissa
