#include "mantissa/models/torchvision_resnet.h"

#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>

#include "mantissa/models/linear_internal.h"

namespace mantissa {
namespace {

/// The convolution has no bias, because the batch norm behind it would cancel it.
torch::nn::Conv2d unbiased_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

int64_t outputs_of(int64_t width, bool bottleneck) { return bottleneck ? 4 * width : width; }

void check_options(const TorchvisionResnetOptions& o) {
  TORCH_CHECK_VALUE(o.channels > 0 && o.classes > 0 && o.width > 0,
                    "TorchvisionResnet: need channels > 0, classes > 0 and width > 0; got ", o.channels, ", ",
                    o.classes, " and ", o.width);
  for (const int64_t blocks : o.layers) {
    TORCH_CHECK_VALUE(blocks > 0, "TorchvisionResnet: a stage of ", blocks,
                      " blocks is invalid; each of the four needs at least one");
  }
}

}  // namespace

TorchvisionResnetOptions resnet18_options() { return {}; }

TorchvisionResnetOptions resnet50_options() { return {.layers = {3, 4, 6, 3}, .bottleneck = true}; }

// The order in which layers are made is that of torchvision, so that the same seed gives the same weights: it makes the
// shortcut before the block, and registers it behind the other layers.
TorchvisionBlockImpl::TorchvisionBlockImpl(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
  const int64_t out = outputs_of(width, bottleneck);
  if (stride != 1 || in != out) {
    shortcut_conv_ = unbiased_conv(in, out, 1, stride);
    shortcut_norm_ = torch::nn::BatchNorm2d(out);
  }
  conv1_ = register_module("conv1",
                           bottleneck ? unbiased_conv(in, width, 1, 1) : unbiased_conv(in, width, 3, stride));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(width));
  conv2_ = register_module("conv2", unbiased_conv(width, width, 3, bottleneck ? stride : 1));
  bn2_ = register_module("bn2", torch::nn::BatchNorm2d(width));
  if (bottleneck) {
    conv3_ = register_module("conv3", unbiased_conv(width, out, 1, 1));
    bn3_ = register_module("bn3", torch::nn::BatchNorm2d(out));
  }
  if (!shortcut_conv_) return;
  register_module("downsample", downsample_);
  downsample_->push_back(shortcut_conv_);
  downsample_->push_back(shortcut_norm_);
}

at::Tensor TorchvisionBlockImpl::residual(const at::Tensor& x) {
  const at::Tensor y = bn2_(conv2_(at::relu(bn1_(conv1_(x)))));
  return conv3_ ? bn3_(conv3_(at::relu(y))) : y;
}

at::Tensor TorchvisionBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = residual(x);
  return at::relu(y + (shortcut_conv_ ? shortcut_norm_(shortcut_conv_(x)) : x));
}

TorchvisionResnetImpl::TorchvisionResnetImpl(const TorchvisionResnetOptions& options) : options_(options) {
  check_options(options);
  conv1_ = register_module("conv1", unbiased_conv(options.channels, options.width, 7, 2));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(options.width));
  int64_t in = options.width;
  for (int64_t i = 0; i < 4; ++i)
    stages_[i] = register_module("layer" + std::to_string(i + 1), make_stage(in, i));
  fc_ = register_module("fc", torch::nn::Linear(in, options.classes));
  initialize_convolutions();
}

/// `in` is the number of input channels, and becomes that of output channels.
torch::nn::ModuleList TorchvisionResnetImpl::make_stage(int64_t& in, int64_t stage) {
  torch::nn::ModuleList blocks;
  const int64_t width = options_.width << stage;
  for (int64_t i = 0; i < options_.layers[stage]; ++i) {
    blocks->push_back(TorchvisionBlock(in, width, i == 0 && stage > 0 ? 2 : 1, options_.bottleneck));
    in = outputs_of(width, options_.bottleneck);
  }
  return blocks;
}

/// Draws from He's distribution for the number of outputs, in the order of registration, as torchvision does.
void TorchvisionResnetImpl::initialize_convolutions() {
  const at::NoGradGuard no_grad;
  for (at::Tensor& weight : parameters()) {
    if (weight.dim() != 4) continue;
    const int64_t fan_out = weight.size(0) * weight.size(2) * weight.size(3);
    weight.normal_(0, std::sqrt(2.0) / std::sqrt(static_cast<double>(fan_out)));
  }
}

at::Tensor TorchvisionResnetImpl::forward(const at::Tensor& images) {
  TORCH_CHECK_VALUE(images.dim() == 4 && images.size(1) == options_.channels,
                    "TorchvisionResnet: expects [N, ", options_.channels, ", H, W]; got ", images.sizes(),
                    "; make it with the channels of the images");
  at::Tensor x = at::max_pool2d(at::relu(bn1_(conv1_(images))), {3, 3}, {2, 2}, {1, 1});
  for (torch::nn::ModuleList& stage : stages_)
    for (const auto& block : *stage) x = block->as<TorchvisionBlock>()->forward(x);
  return linear(fc_, at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

}  // namespace mantissa
