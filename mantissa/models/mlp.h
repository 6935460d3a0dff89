#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

struct MlpOptions {
  /// The number of values in one sample: channels * height * width of an image.
  int64_t in_features = 0;
  int64_t classes = 0;
  /// The width of each hidden layer. Without hidden layers it is a linear classifier.
  std::vector<int64_t> hidden = {128, 128};
};

/// Fully connected layers with ReLU between them: the smallest network that learns the digits.
///
/// Shapes: [N, ...] with in_features values per sample -> [N, classes], not normalized.
/// Errors: c10::ValueError for options out of range, and from forward() for samples of another size.
class MlpImpl final : public TensorModule {
 public:
  explicit MlpImpl(const MlpOptions& options);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  MlpOptions options_;
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(Mlp);

}  // namespace mantissa
