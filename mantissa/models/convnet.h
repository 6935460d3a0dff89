#pragma once

#include <cstdint>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

struct ConvnetOptions {
  int64_t channels = 1;
  /// The size of the images, at least 2 because they are halved once.
  int64_t height = 0;
  int64_t width = 0;
  int64_t classes = 0;
  /// The channels after the first and the second convolution, and the width of the hidden layer.
  int64_t first = 16;
  int64_t second = 32;
  int64_t hidden = 64;
};

/// Two 3x3 convolutions with ReLU, a 2x2 max-pool and one hidden layer, for 8x8 digits and for 28x28 MNIST.
///
/// Shapes: [N, channels, height, width] -> [N, classes], not normalized.
/// Errors: c10::ValueError for options out of range, and from forward() for images of another size.
class ConvnetImpl final : public TensorModule {
 public:
  explicit ConvnetImpl(const ConvnetOptions& options);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  ConvnetOptions options_;
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::Linear hidden_{nullptr}, head_{nullptr};
};
TORCH_MODULE(Convnet);

}  // namespace mantissa
