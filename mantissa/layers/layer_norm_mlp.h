#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "mantissa/layers/activation.h"
#include "mantissa/layers/normalization.h"
#include "mantissa/weights/linear_weights.h"

namespace mantissa {

struct LayerNormMLPOptions {
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;  ///< features between the two layers, after the activation
  bool bias = true;
  NormalizationOptions normalization = {};
  std::string activation = "gelu";  ///< a name of activations()
};

/// fc2(activation(fc1(normalize(x)))), Transformer Engine's module of this name, with its parameter names:
/// layer_norm_weight, layer_norm_bias (LayerNorm only), fc1_weight, fc1_bias, fc2_weight, fc2_bias.
///
/// Shapes:  x [..., hidden_size] -> the same. A gated activation halves the features, so fc1_weight is then
///          [2 ffn_hidden_size, hidden_size].
/// Init and formats: as LayerNormLinear. An FP8 mode has scales for both products.
/// Errors:  c10::ValueError for sizes that are not positive and for an unknown activation.
/// Source:  Transformer Engine's LayerNormMLP.
class LayerNormMLPImpl final : public torch::nn::Cloneable<LayerNormMLPImpl>, public HasLinearWeights {
 public:
  explicit LayerNormMLPImpl(LayerNormMLPOptions options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& x);
  /// Returns also the normalized x: Transformer Engine's return_layernorm_output.
  std::pair<at::Tensor, at::Tensor> forward_with_norm(const at::Tensor& x);

  std::vector<std::string> linear_weights() const override { return {"fc1_weight", "fc2_weight"}; }
  const LayerNormMLPOptions& options() const { return options_; }

 private:
  LayerNormMLPOptions options_;
  Activation activation_;
};
TORCH_MODULE(LayerNormMLP);

}  // namespace mantissa
