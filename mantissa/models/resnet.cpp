#include "mantissa/models/resnet.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>

#include "mantissa/models/linear_internal.h"

namespace mantissa {
namespace {

/// The convolution has no bias, because the batch norm behind it would cancel it.
torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in, int64_t out, int64_t stride) {
  conv1_ = register_module("conv1", conv(in, out, 3, stride));
  norm1_ = register_module("norm1", torch::nn::BatchNorm2d(out));
  conv2_ = register_module("conv2", conv(out, out, 3, 1));
  norm2_ = register_module("norm2", torch::nn::BatchNorm2d(out));
  if (stride != 1 || in != out) {
    shortcut_conv_ = register_module("shortcut_conv", conv(in, out, 1, stride));
    shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
  }
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& x) {
  at::Tensor y = at::relu(norm1_(conv1_(x)));
  y = norm2_(conv2_(y));
  const at::Tensor shortcut = shortcut_conv_ ? shortcut_norm_(shortcut_conv_(x)) : x;
  return at::relu(y + shortcut);
}

ResnetImpl::ResnetImpl(const ResnetOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.channels > 0 && options.classes > 0,
                    "Resnet: need channels > 0 and classes > 0; got ", options.channels, " and ",
                    options.classes);
  TORCH_CHECK_VALUE(!options.widths.empty(),
                    "Resnet: widths is empty; name the channels of at least one block");
  for (const int64_t width : options.widths) {
    TORCH_CHECK_VALUE(width > 0, "Resnet: a block of ", width,
                      " channels is invalid; every width must be positive");
  }
  int64_t in = options.widths.front();
  stem_conv_ = register_module("stem_conv", conv(options.channels, in, 3, 1));
  stem_norm_ = register_module("stem_norm", torch::nn::BatchNorm2d(in));
  register_module("blocks", blocks_);
  for (const int64_t out : options.widths) {
    blocks_->push_back(BasicBlock(in, out, blocks_->is_empty() ? 1 : 2));
    in = out;
  }
  head_ = register_module("head", torch::nn::Linear(in, options.classes));
}

at::Tensor ResnetImpl::forward(const at::Tensor& images) {
  TORCH_CHECK_VALUE(images.dim() == 4 && images.size(1) == options_.channels, "Resnet: expects [N, ",
                    options_.channels, ", H, W]; got ", images.sizes(),
                    "; make it with the channels of the images");
  at::Tensor x = at::relu(stem_norm_(stem_conv_(images)));
  for (const auto& block : *blocks_) x = block->as<BasicBlock>()->forward(x);
  return linear(head_, x.mean({2, 3}));
}

}  // namespace mantissa
