#include "mantissa/quant/int8_state.h"

#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

namespace mantissa {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// The name of a tensor beside the weight.
std::string beside(const std::string& name, const std::string& component) {
  constexpr std::string_view kWeight = "weight";
  const bool is_weight = name == kWeight || name.ends_with("." + std::string(kWeight));
  return is_weight ? name.substr(0, name.size() - kWeight.size()) + component : name + "." + component;
}

const at::Tensor& find(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  TORCH_CHECK_VALUE(found != tensors.end(), "unpack_state_int8: there is no tensor '", name,
                    "'; the state is not complete: save the weight again");
  return found->second;
}

}  // namespace

std::map<std::string, at::Tensor> pack_state(const QuantizedInt8& quantized, const std::string& name) {
  return {{name, quantized.codes},
          {beside(name, "SCB"), quantized.scales},
          {beside(name, "weight_format"), at::zeros({}, at::kByte)}};
}

bool has_state_int8(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  return tensors.contains(beside(name, "SCB"));
}

QuantizedInt8 unpack_state_int8(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  const std::string scales_name = beside(name, "SCB"), format_name = beside(name, "weight_format");
  const at::Tensor codes = find(tensors, name), scales = find(tensors, scales_name);
  TORCH_CHECK_VALUE(codes.scalar_type() == at::kChar && codes.dim() >= 2, "unpack_state_int8: '", name,
                    "' has dtype ", codes.scalar_type(), " and shape ", codes.sizes(),
                    "; an 8-bit weight is int8 [out, in]");
  TORCH_CHECK_VALUE(scales.scalar_type() == at::kFloat && scales.numel() == codes.size(0),
                    "unpack_state_int8: '", scales_name, "' has dtype ", scales.scalar_type(), " and ",
                    scales.numel(), " elements; '", name, "' needs float32 and ", codes.size(0));
  TORCH_CHECK_VALUE((scales.isfinite() & (scales >= 0)).all().item<bool>(), "unpack_state_int8: '",
                    scales_name, "' has scales that are negative, inf or nan; the file is damaged");
  TORCH_CHECK_VALUE(scales.device() == codes.device(), "unpack_state_int8: '", scales_name, "' is on ",
                    scales.device(), ", and '", name, "' is on ", codes.device(), "; move one of them");
  const auto format = tensors.find(format_name);
  if (format != tensors.end()) {
    const at::Tensor& value = format->second;
    TORCH_CHECK_VALUE(
        value.numel() == 1 && !value.is_floating_point() && value.item<int64_t>() == 0,
        "unpack_state_int8: '", format_name,
        "' is not 0, the format that is stored row by row; save the weight with a current bitsandbytes");
  }
  return {codes.detach().flatten(1).contiguous(), scales.detach().reshape({-1}).contiguous(), {}};
}

}  // namespace mantissa
