#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "mantissa/layers/layer_norm_linear.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

/// Which positions a position attends to.
enum class AttnMaskType : uint8_t {
  kNoMask,    ///< all
  kCausal,    ///< those up to itself
  kArbitrary  ///< those that the mask given to forward() leaves
};

/// The order of the first two dimensions of input and result.
enum class AttnInputFormat : uint8_t {
  kSbhd,  ///< [sequence, batch, hidden]: Transformer Engine's default
  kBshd   ///< [batch, sequence, hidden]: libtorch's "batch first"
};

struct MultiheadAttentionOptions {
  int64_t hidden_size = 0, num_attention_heads = 0;
  std::optional<int64_t> num_gqa_groups =
      std::nullopt;                                   ///< heads of key and value; unset: num_attention_heads
  std::optional<int64_t> kv_channels = std::nullopt;  ///< features of a head; unset: hidden_size / heads
  double attention_dropout = 0.1;
  AttnMaskType attn_mask_type = AttnMaskType::kCausal;
  AttnInputFormat attn_input_format = AttnInputFormat::kSbhd;
  NormalizationOptions normalization = {};
  bool bias = true;
  /// One parameter for query, key and value, instead of three.
  bool fuse_qkv_params = false;
  /// The rows of a fused parameter: the queries of a group, its key and its value, group after group. False: all queries,
  /// all keys, all values.
  bool qkv_weight_interleaved = true;
};

/// proj(attention(query, key, value)), where layernorm_qkv computes the three from the normalized input: Transformer
/// Engine's module with input_layernorm, and its parameter names.
///
/// Shapes: x [S, B, hidden] or [B, S, hidden] (attn_input_format) -> the same. Group g of the keys serves the heads from
///         g * heads / groups on.
/// FP8:    a mode whose recipe has fp8_dpa computes attention's two products in FP8, as does an Fp8AttentionRule that you set
///         (fp8/attention_fp8.h).
/// Errors: c10::ValueError for sizes that are not positive, heads that are no multiple of the groups, a hidden size that
///         the heads do not divide (unless kv_channels is given), a dropout outside [0, 1), an x of another shape, and a
///         mask where the type of mask has none, or none where it needs one.
/// Source: Transformer Engine's MultiheadAttention.
class MultiheadAttentionImpl final : public torch::nn::Cloneable<MultiheadAttentionImpl>,
                                     public HasAttention {
 public:
  explicit MultiheadAttentionImpl(MultiheadAttentionOptions options);
  void reset() override;

  /// `attention_mask`: bool, broadcastable to [B, heads, S, S]; true means masked out, as in Transformer Engine
  /// and contrary to at::scaled_dot_product_attention().
  at::Tensor forward(const at::Tensor& x, const at::Tensor& attention_mask = {});
  /// Returns also the normalized x.
  std::pair<at::Tensor, at::Tensor> forward_with_norm(const at::Tensor& x,
                                                      const at::Tensor& attention_mask = {});

  const MultiheadAttentionOptions& options() const { return options_; }

 private:
  int64_t groups() const { return options_.num_gqa_groups.value_or(options_.num_attention_heads); }
  int64_t channels() const;
  std::vector<at::Tensor> heads_of(std::vector<at::Tensor> parts) const;
  at::Tensor attend_to(std::vector<at::Tensor> qkv, const at::Tensor& attention_mask) const;

  MultiheadAttentionOptions options_;
  LayerNormLinear layernorm_qkv_{nullptr};
  torch::nn::Linear proj_{nullptr};
};
TORCH_MODULE(MultiheadAttention);

}  // namespace mantissa
