#include "mantissa/precision/channels_last.h"

#include <optional>

#include <torch/nn/module.h>

namespace mantissa {
namespace {

/// Returns nullopt for a tensor without channels.
std::optional<at::MemoryFormat> memory_format_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_nested()) return std::nullopt;
  if (tensor.dim() == 4) return at::MemoryFormat::ChannelsLast;
  if (tensor.dim() == 5) return at::MemoryFormat::ChannelsLast3d;
  return std::nullopt;
}

/// Sets the strides even where dimensions of size 1 leave the format ambiguous: kernels are chosen by the
/// strides.
at::Tensor laid_out(const at::Tensor& tensor, at::MemoryFormat format) {
  return tensor.to(tensor.options(), /*non_blocking=*/false, /*copy=*/false, format);
}

}  // namespace

void set_channels_last(torch::nn::Module& module) {
  const auto lay_out = [](at::Tensor& tensor) {
    const auto format = tensor.defined() ? memory_format_of(tensor) : std::nullopt;
    if (!format) return;
    tensor.set_data(laid_out(tensor.data(), *format));
    if (tensor.grad().defined()) tensor.mutable_grad() = laid_out(tensor.grad(), *format);
  };
  for (at::Tensor& parameter : module.parameters()) lay_out(parameter);
  for (at::Tensor& buffer : module.buffers()) lay_out(buffer);
}

at::Tensor channels_last(const at::Tensor& tensor) {
  const auto format = memory_format_of(tensor);
  return format ? tensor.contiguous(*format) : tensor;
}

}  // namespace mantissa
