#pragma once

// The two networks of benchmarks/gpu. Unlike those of mantissa/models, they are written as PyTorch alone can repeat them, because the
// machine with the GPU has neither torchvision nor timm. Their twins in
// benchmarks/gpu_parts/twins.py have the same names and the same operations in the same order.

#include <cstdint>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "mantissa/models/tensor_module.h"

namespace mantissa::twins {

/// Computes relu(norm3(conv3(relu(norm2(conv2(relu(norm1(conv1(x)))))))) + shortcut(x)): a 1x1 convolution
/// down to `width`, a 3x3 convolution with the stride, and a 1x1 convolution up to 4 * width. The shortcut is
/// a 1x1 convolution with batch norm where the shape changes, and x itself elsewhere.
///
/// Shapes: [N, in, H, W] -> [N, 4 * width, ceil(H / stride), ceil(W / stride)].
class BottleneckImpl final : public TensorModule {
 public:
  BottleneckImpl(int64_t in, int64_t width, int64_t stride);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr}, shortcut_conv_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr}, norm3_{nullptr}, shortcut_norm_{nullptr};
};
TORCH_MODULE(Bottleneck);

struct BottleneckResnetOptions {
  /// The number of bottlenecks in each stage. From the second stage on, the first bottleneck has stride 2.
  std::vector<int64_t> blocks = {3, 4, 6, 3};
  /// The width of the first stage's bottlenecks, and the channels of the stem. Each stage doubles it.
  int64_t width = 64;
  int64_t classes = 1000;
};

/// By default ResNet-50, with the stride in the 3x3 convolution as in torchvision.
///
/// Shapes: [N, 3, H, W] -> [N, classes], not normalized.
/// Source: He et al. 2016, arXiv:1512.03385, table 1.
class BottleneckResnetImpl final : public TensorModule {
 public:
  explicit BottleneckResnetImpl(const BottleneckResnetOptions& options);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Conv2d stem_conv_{nullptr};
  torch::nn::BatchNorm2d stem_norm_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(BottleneckResnet);

struct VitOptions {
  int64_t layers = 24;
  int64_t width = 1024;
  int64_t heads = 16;
  /// Images are squares with `image` pixels per side, cut into squares of `patch` pixels per side.
  int64_t image = 224;
  int64_t patch = 16;
  int64_t classes = 1000;
};

/// Computes x + projection(attention(norm1(x))), then x + contract(gelu(expand(norm2(x)))).
///
/// Shapes: input and output are [N, T, width]; every position attends to all positions.
class VitBlockImpl final : public TensorModule {
 public:
  explicit VitBlockImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  at::Tensor attend(const at::Tensor& x);

  int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, projection_{nullptr}, expand_{nullptr}, contract_{nullptr};
};
TORCH_MODULE(VitBlock);

/// By default ViT-L/16: a class token before the patches, learned positions, and layer norm before each part.
///
/// Shapes: [N, 3, image, image] -> [N, classes], not normalized.
/// Source: Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1.
class VitImpl final : public TensorModule {
 public:
  explicit VitImpl(const VitOptions& options);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  torch::nn::Conv2d patches_{nullptr};
  at::Tensor class_token_, positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Vit);

}  // namespace mantissa::twins
