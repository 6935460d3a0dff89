#include "benchmarks/vision_models.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include "mantissa/models/linear_internal.h"

namespace mantissa::twins {
namespace {

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

torch::nn::LayerNorm layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

}  // namespace

BottleneckImpl::BottleneckImpl(int64_t in, int64_t width, int64_t stride) {
  const int64_t out = 4 * width;
  conv1_ = register_module("conv1", conv(in, width, 1, 1));
  norm1_ = register_module("norm1", torch::nn::BatchNorm2d(width));
  conv2_ = register_module("conv2", conv(width, width, 3, stride));
  norm2_ = register_module("norm2", torch::nn::BatchNorm2d(width));
  conv3_ = register_module("conv3", conv(width, out, 1, 1));
  norm3_ = register_module("norm3", torch::nn::BatchNorm2d(out));
  if (stride != 1 || in != out) {
    shortcut_conv_ = register_module("shortcut_conv", conv(in, out, 1, stride));
    shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
  }
}

at::Tensor BottleneckImpl::forward(const at::Tensor& x) {
  at::Tensor y = at::relu(norm1_(conv1_(x)));
  y = at::relu(norm2_(conv2_(y)));
  y = norm3_(conv3_(y));
  const at::Tensor shortcut = shortcut_conv_ ? shortcut_norm_(shortcut_conv_(x)) : x;
  return at::relu(y + shortcut);
}

BottleneckResnetImpl::BottleneckResnetImpl(const BottleneckResnetOptions& options) {
  stem_conv_ = register_module("stem_conv", conv(3, options.width, 7, 2));
  stem_norm_ = register_module("stem_norm", torch::nn::BatchNorm2d(options.width));
  register_module("blocks", blocks_);
  int64_t in = options.width, width = options.width;
  for (const int64_t blocks : options.blocks) {
    for (int64_t i = 0; i < blocks; ++i) {
      const bool halves = i == 0 && !blocks_->is_empty();
      blocks_->push_back(Bottleneck(in, width, halves ? 2 : 1));
      in = 4 * width;
    }
    width *= 2;
  }
  head_ = register_module("head", torch::nn::Linear(in, options.classes));
}

at::Tensor BottleneckResnetImpl::forward(const at::Tensor& images) {
  at::Tensor x = at::relu(stem_norm_(stem_conv_(images)));
  x = at::max_pool2d(x, 3, 2, 1);
  for (const auto& block : *blocks_) x = block->as<Bottleneck>()->forward(x);
  return linear(head_, x.mean({2, 3}));
}

VitBlockImpl::VitBlockImpl(const VitOptions& options) : heads_(options.heads) {
  const int64_t width = options.width;
  norm1_ = register_module("norm1", layer_norm(width));
  qkv_ = register_module("qkv", torch::nn::Linear(width, 3 * width));
  projection_ = register_module("projection", torch::nn::Linear(width, width));
  norm2_ = register_module("norm2", layer_norm(width));
  expand_ = register_module("expand", torch::nn::Linear(width, 4 * width));
  contract_ = register_module("contract", torch::nn::Linear(4 * width, width));
}

at::Tensor VitBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + attend(norm1_(x));
  return y + linear(contract_, at::gelu(linear(expand_, norm2_(y))));
}

at::Tensor VitBlockImpl::attend(const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  std::vector<at::Tensor> parts = linear(qkv_, x).split(width, 2);
  for (at::Tensor& part : parts) {  // [N, T, width] -> [N, heads, T, width / heads]
    part = part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
  }
  const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  return linear(projection_, y.transpose(1, 2).reshape({batch, length, width}));
}

VitImpl::VitImpl(const VitOptions& options) {
  const int64_t side = options.image / options.patch;
  patches_ = register_module(
      "patches",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, options.width, options.patch).stride(options.patch)));
  class_token_ = register_parameter("class_token", at::zeros({1, 1, options.width}));
  positions_ = register_parameter("positions", at::zeros({1, side * side + 1, options.width}));
  register_module("blocks", blocks_);
  for (int64_t i = 0; i < options.layers; ++i) blocks_->push_back(VitBlock(options));
  norm_ = register_module("norm", layer_norm(options.width));
  head_ = register_module("head", torch::nn::Linear(options.width, options.classes));
}

at::Tensor VitImpl::forward(const at::Tensor& images) {
  at::Tensor x = patches_(images).flatten(2).transpose(1, 2);
  x = at::cat({class_token_.expand({x.size(0), -1, -1}), x}, 1) + positions_;
  for (const auto& block : *blocks_) x = block->as<VitBlock>()->forward(x);
  return linear(head_, norm_(x).select(1, 0));
}

}  // namespace mantissa::twins
