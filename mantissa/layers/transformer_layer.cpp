#include "mantissa/layers/transformer_layer.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <c10/util/Exception.h>

namespace mantissa {

TransformerLayerImpl::TransformerLayerImpl(TransformerLayerOptions options) : options_(std::move(options)) {
  TORCH_CHECK_VALUE(options_.hidden_dropout >= 0 && options_.hidden_dropout < 1,
                    "TransformerLayer: hidden_dropout is ", options_.hidden_dropout,
                    "; give at least 0 and below 1");
  TORCH_CHECK_VALUE(!options_.parallel_attention_mlp || !options_.apply_residual_connection_post_layernorm,
                    "TransformerLayer: parallel_attention_mlp has two normalized inputs, so "
                    "apply_residual_connection_post_layernorm is ambiguous; choose one of them");
  reset();
}

void TransformerLayerImpl::reset() {
  self_attention_ =
      register_module("self_attention", MultiheadAttention(MultiheadAttentionOptions{
                                            .hidden_size = options_.hidden_size,
                                            .num_attention_heads = options_.num_attention_heads,
                                            .num_gqa_groups = options_.num_gqa_groups,
                                            .kv_channels = options_.kv_channels,
                                            .attention_dropout = options_.attention_dropout,
                                            .attn_mask_type = options_.self_attn_mask_type,
                                            .attn_input_format = options_.attn_input_format,
                                            .normalization = options_.normalization,
                                            .bias = options_.bias,
                                            .fuse_qkv_params = options_.fuse_qkv_params,
                                            .qkv_weight_interleaved = options_.qkv_weight_interleaved}));
  layernorm_mlp_ = register_module(
      "layernorm_mlp", LayerNormMLP(LayerNormMLPOptions{.hidden_size = options_.hidden_size,
                                                        .ffn_hidden_size = options_.ffn_hidden_size,
                                                        .bias = options_.bias,
                                                        .normalization = options_.normalization,
                                                        .activation = options_.activation}));
}

at::Tensor TransformerLayerImpl::add(const at::Tensor& residual, const at::Tensor& y) const {
  return residual + at::dropout(y, options_.hidden_dropout, is_training());
}

at::Tensor TransformerLayerImpl::forward(const at::Tensor& x, const at::Tensor& attention_mask) {
  const auto [attended, normalized] = self_attention_->forward_with_norm(x, attention_mask);
  if (options_.parallel_attention_mlp) return add(x, attended + layernorm_mlp_->forward(x));
  const bool post_norm = options_.apply_residual_connection_post_layernorm;
  const at::Tensor y = add(post_norm ? normalized : x, attended);
  const auto [expanded, normalized_y] = layernorm_mlp_->forward_with_norm(y);
  return add(post_norm ? normalized_y : y, expanded);
}

}  // namespace mantissa
