#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "mantissa/layers/normalization.h"
#include "mantissa/weights/linear_weights.h"

namespace mantissa {

struct LayerNormLinearOptions {
  int64_t in_features = 0, out_features = 0;
  bool bias = true;
  NormalizationOptions normalization = {};
  /// Names and output features of the parts in which weight and bias are kept, such as {{"query", 64}, {"key", 16},
  /// {"value", 16}}: parameters query_weight, query_bias and so on. Empty: one `weight` and one `bias`.
  std::vector<std::pair<std::string, int64_t>> parameters_split = {};
};

/// linear(normalize(x)), Transformer Engine's module of this name, with its parameter names: layer_norm_weight,
/// layer_norm_bias (LayerNorm only), weight, bias.
///
/// Shapes:  x [..., in_features] -> [..., out_features].
/// Init:    weights from N(0, 0.023), biases 0; the layer norm's weight 1, or 0 if zero-centered.
/// Formats: the product is torch::linear(), so a mode that quantizes or marks weights treats it as any layer. An FP8 layer
///          quantizes the normalized input once and keeps its codes for backward, not the values.
/// Parts:   with parameters_split, each part is a product of its own: an FP8 mode has scales for each of them, where
///          Transformer Engine has one for all.
/// Errors:  c10::ValueError for sizes that are not positive, and for parts that do not add up to out_features or have an
///          empty or repeated name.
/// Source:  Transformer Engine's LayerNormLinear.
class LayerNormLinearImpl final : public torch::nn::Cloneable<LayerNormLinearImpl>, public HasLinearWeights {
 public:
  explicit LayerNormLinearImpl(LayerNormLinearOptions options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  at::Tensor forward(const at::Tensor& x);
  /// Returns the outputs of the parts; one if there is no split.
  std::vector<at::Tensor> forward_parts(const at::Tensor& x);
  /// Returns also the normalized x: Transformer Engine's return_layernorm_output.
  std::pair<std::vector<at::Tensor>, at::Tensor> forward_with_norm(const at::Tensor& x);

  std::vector<std::string> linear_weights() const override;
  const LayerNormLinearOptions& options() const { return options_; }

 private:
  LayerNormLinearOptions options_;
};
TORCH_MODULE(LayerNormLinear);

}  // namespace mantissa
