#pragma once

#include <array>
#include <cstdint>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

struct TorchvisionResnetOptions {
  int64_t channels = 3;
  int64_t classes = 1000;
  /// The number of blocks in each of the four stages.
  std::array<int64_t, 4> layers = {2, 2, 2, 2};
  /// Blocks of three convolutions, 1x1, 3x3 and 1x1, instead of two of 3x3.
  bool bottleneck = false;
  /// The channels of the stem and of the 3x3 convolutions in the first stage. Each later stage has twice as many.
  int64_t width = 64;
};

/// The options of ResNet-18 (11.7 million parameters) and ResNet-50 (25.6).
TorchvisionResnetOptions resnet18_options();
TorchvisionResnetOptions resnet50_options();

/// Adds x, or downsample(x) where the shape changes, to the result of the convolutions, and applies ReLU.
///
/// Shapes: [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)]; out is `width`, or 4 * `width` with a
///         bottleneck.
class TorchvisionBlockImpl final : public torch::nn::Module {
 public:
  TorchvisionBlockImpl(int64_t in, int64_t width, int64_t stride, bool bottleneck);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor residual(const at::Tensor& x);

  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr}, shortcut_conv_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr}, bn2_{nullptr}, bn3_{nullptr}, shortcut_norm_{nullptr};
  torch::nn::ModuleList downsample_;
};
TORCH_MODULE(TorchvisionBlock);

/// ResNet with the parameters and buffers of torchvision's ResNet, such as "layer1.0.conv1.weight" and
/// "layer2.0.downsample.1.running_mean"; timm has the same names. It takes images of any size.
///
/// Shapes:   [N, channels, H, W], H and W at least 1 -> [N, classes], not normalized.
/// Units:    as in torchvision, convolutions start from N(0, sqrt(2 / (kernel area * output channels))). The same seed
///           gives the same weights.
/// Numerics: logits, gradients and buffers equal those of torchvision bit for bit on the same CPU.
/// Errors:   c10::ValueError for options out of range, and from forward() for other shapes; c10::Error from
///           batch norm in training if only one value per channel is left (one image of a few pixels).
/// Source:   He et al. 2016, arXiv:1512.03385. As in torchvision, the 3x3 convolution of a bottleneck has its stride.
/// Example:  torchvision_resnet_test.cpp, TorchvisionResnet.HasTheNamesOfTorchvision
class TorchvisionResnetImpl final : public TensorModule {
 public:
  explicit TorchvisionResnetImpl(const TorchvisionResnetOptions& options);
  at::Tensor forward(const at::Tensor& images) override;
  const TorchvisionResnetOptions& options() const { return options_; }

 private:
  torch::nn::ModuleList make_stage(int64_t& in, int64_t stage);
  void initialize_convolutions();

  TorchvisionResnetOptions options_;
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  std::array<torch::nn::ModuleList, 4> stages_{nullptr, nullptr, nullptr, nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(TorchvisionResnet);

}  // namespace mantissa
