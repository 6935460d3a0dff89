#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

/// Computes relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x)). The shortcut is a 1x1 convolution with
/// batch norm where the shape changes, and x itself elsewhere.
///
/// Shapes: [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)].
/// Source: He et al. 2016, arXiv:1512.03385, section 3.
class BasicBlockImpl final : public TensorModule {
 public:
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride);
  at::Tensor forward(const at::Tensor& x) override;

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, shortcut_conv_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr}, shortcut_norm_{nullptr};
};
TORCH_MODULE(BasicBlock);

struct ResnetOptions {
  int64_t channels = 1;
  int64_t classes = 0;
  /// The channels of each basic block; the stem has those of the first. From the second block on, the stride
  /// is 2.
  std::vector<int64_t> widths = {32, 64, 128};
};

/// A 3x3 stem and basic blocks with batch norm, followed by the mean over positions. It is the smallest
/// network with the layers that are hard for mixed precision. It takes images of any size.
///
/// Shapes: [N, channels, H, W], H and W at least 1 -> [N, classes], not normalized.
/// Errors: c10::ValueError for options out of range, and from forward() for other shapes; c10::Error from
///         batch norm in training if only one value per channel is left (one image of a few pixels).
class ResnetImpl final : public TensorModule {
 public:
  explicit ResnetImpl(const ResnetOptions& options);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  ResnetOptions options_;
  torch::nn::Conv2d stem_conv_{nullptr};
  torch::nn::BatchNorm2d stem_norm_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Resnet);

}  // namespace mantissa
