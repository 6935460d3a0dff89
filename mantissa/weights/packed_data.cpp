#include "mantissa/weights/packed_data.h"

#include <utility>

#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

std::string key_of(const std::string& weight, const std::string& part) {
  return part.empty() ? weight : weight + "." + part;
}

}  // namespace

PackedData::Parts PackedData::state(const std::string& name) const {
  Parts result;
  for (const auto& [part, tensor] : parts()) result.emplace(key_of(name, part), tensor);
  return result;
}

PackedDataPtr PackedData::with_state(const Parts& stored, const std::string& name) const {
  Parts found;
  for (const auto& [part, own] : parts()) {
    const std::string key = key_of(name, part);
    const auto entry = stored.find(key);
    TORCH_CHECK_VALUE(entry != stored.end(), "'", key, "' is missing, which the model's weight '", name,
                      "' (", description(), ") needs; load into a model of the saved format");
    const at::Tensor& value = entry->second;
    TORCH_CHECK_VALUE(value.scalar_type() == own.scalar_type() && value.sizes() == own.sizes(), "'", key,
                      "' is ", value.scalar_type(), " ", value.sizes(), ", and the model's weight '", name,
                      "' (", description(), ") needs ", own.scalar_type(), " ", own.sizes(),
                      "; load into a model of the saved format");
    found.emplace(part, value.detach().to(own.device(), /*dtype=*/own.scalar_type(), /*non_blocking=*/false,
                                          /*copy=*/true));
  }
  return with_parts(std::move(found));
}

PackedDataPtr PackedData::with_values(const at::Tensor& /*values*/, const std::string& name) const {
  TORCH_CHECK_VALUE(false, "'", name, "' is stored as plain numbers, and the model's weight (", description(),
                    ") cannot be made from them; load into a plain model, or into one of the saved format");
}

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
