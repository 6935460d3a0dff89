#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "mantissa/layers/layer_norm_mlp.h"
#include "mantissa/layers/multihead_attention.h"

namespace mantissa {

/// Transformer Engine's names and defaults.
struct TransformerLayerOptions {
  int64_t hidden_size = 0, ffn_hidden_size = 0, num_attention_heads = 0;
  std::optional<int64_t> num_gqa_groups =
      std::nullopt;                                   ///< heads of key and value; unset: num_attention_heads
  std::optional<int64_t> kv_channels = std::nullopt;  ///< features of a head; unset: hidden_size / heads
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  AttnMaskType self_attn_mask_type = AttnMaskType::kCausal;
  AttnInputFormat attn_input_format = AttnInputFormat::kSbhd;
  NormalizationOptions normalization = {};
  std::string activation = "gelu";  ///< a name of activations()
  bool bias = true;
  bool fuse_qkv_params = false, qkv_weight_interleaved = true;  ///< see MultiheadAttentionOptions
  /// The residual is the normalized input of each part, not the input itself.
  bool apply_residual_connection_post_layernorm = false;
  /// Attention and MLP have the same input: x + dropout(attention(x) + mlp(x)), as Falcon's.
  bool parallel_attention_mlp = false;
};

/// x + dropout(self_attention(x)), then y + dropout(layernorm_mlp(y)): an encoder layer of Transformer Engine with its
/// parameter names, such as self_attention.layernorm_qkv.query_weight, self_attention.proj.weight and
/// layernorm_mlp.fc1_weight. Other entries of its state dicts, whose names end in _extra_state, are no parameters.
///
/// Shapes: x [S, B, hidden] or [B, S, hidden] (attn_input_format) -> the same.
/// Errors: those of MultiheadAttention and LayerNormMLP; c10::ValueError for a dropout outside [0, 1), and for
///         parallel_attention_mlp with apply_residual_connection_post_layernorm.
/// Source: Transformer Engine's TransformerLayer. Its decoder type, output_layernorm and drop path are not here.
class TransformerLayerImpl final : public torch::nn::Cloneable<TransformerLayerImpl> {
 public:
  explicit TransformerLayerImpl(TransformerLayerOptions options);
  void reset() override;

  /// `attention_mask`: as that of MultiheadAttention.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& attention_mask = {});

  const TransformerLayerOptions& options() const { return options_; }

 private:
  at::Tensor add(const at::Tensor& residual, const at::Tensor& y) const;

  TransformerLayerOptions options_;
  MultiheadAttention self_attention_{nullptr};
  LayerNormMLP layernorm_mlp_{nullptr};
};
TORCH_MODULE(TransformerLayer);

}  // namespace mantissa
