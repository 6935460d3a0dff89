#include "mantissa/layers/multihead_attention.h"

#include <utility>
#include <vector>

#include <ATen/ops/linear.h>

#include "mantissa/layers/parameters_internal.h"

namespace mantissa {
namespace {

void check(const MultiheadAttentionOptions& options) {
  constexpr const char* kWho = "MultiheadAttention";
  const int64_t heads = options.num_attention_heads, groups = options.num_gqa_groups.value_or(heads);
  check_size(kWho, "hidden_size", options.hidden_size);
  check_size(kWho, "num_attention_heads", heads);
  check_size(kWho, "num_gqa_groups", groups);
  if (options.kv_channels) check_size(kWho, "kv_channels", *options.kv_channels);
  TORCH_CHECK_VALUE(heads % groups == 0, kWho, ": num_attention_heads ", heads,
                    " is not a multiple of num_gqa_groups ", groups, "; change one of them");
  TORCH_CHECK_VALUE(options.kv_channels || options.hidden_size % heads == 0, kWho, ": hidden_size ",
                    options.hidden_size, " is not a multiple of num_attention_heads ", heads,
                    "; change one of them, or give kv_channels");
  TORCH_CHECK_VALUE(options.attention_dropout >= 0 && options.attention_dropout < 1, kWho,
                    ": attention_dropout is ", options.attention_dropout, "; give at least 0 and below 1");
}

}  // namespace

MultiheadAttentionImpl::MultiheadAttentionImpl(MultiheadAttentionOptions options) : options_(options) {
  check(options_);
  reset();
}

int64_t MultiheadAttentionImpl::channels() const {
  return options_.kv_channels.value_or(options_.hidden_size / options_.num_attention_heads);
}

void MultiheadAttentionImpl::reset() {
  const int64_t query = options_.num_attention_heads * channels(), key = groups() * channels();
  LayerNormLinearOptions qkv{.in_features = options_.hidden_size,
                             .out_features = query + 2 * key,
                             .bias = options_.bias,
                             .normalization = options_.normalization};
  if (!options_.fuse_qkv_params) qkv.parameters_split = {{"query", query}, {"key", key}, {"value", key}};
  layernorm_qkv_ = register_module("layernorm_qkv", LayerNormLinear(std::move(qkv)));
  proj_ = register_module(
      "proj", torch::nn::Linear(torch::nn::LinearOptions(query, options_.hidden_size).bias(options_.bias)));
  at::NoGradGuard no_grad;
  proj_->weight.normal_(0, kInitialStd);
  if (options_.bias) proj_->bias.zero_();
}

/// Returns query, key and value as [.., .., heads or groups, channels].
std::vector<at::Tensor> MultiheadAttentionImpl::heads_of(std::vector<at::Tensor> parts) const {
  const int64_t heads = options_.num_attention_heads, per_group = heads / groups();
  if (parts.size() == 1) {
    const at::Tensor& fused = parts.front();
    const int64_t a = fused.size(0), b = fused.size(1);
    if (options_.qkv_weight_interleaved) {
      parts = fused.view({a, b, groups(), per_group + 2, channels()}).split_with_sizes({per_group, 1, 1}, 3);
    } else {
      parts = fused.split_with_sizes({heads * channels(), groups() * channels(), groups() * channels()}, 2);
    }
  }
  for (at::Tensor& part : parts) part = part.reshape({part.size(0), part.size(1), -1, channels()});
  return parts;
}

at::Tensor MultiheadAttentionImpl::attend_to(std::vector<at::Tensor> qkv,
                                             const at::Tensor& attention_mask) const {
  const bool sequence_first = options_.attn_input_format == AttnInputFormat::kSbhd;
  for (at::Tensor& part : qkv)  // -> [B, heads, S, channels]
    part = sequence_first ? part.permute({1, 2, 0, 3}) : part.transpose(1, 2);
  const at::Tensor y = attend({.query = qkv[0],
                               .key = qkv[1],
                               .value = qkv[2],
                               .mask = attention_mask.defined() ? attention_mask.logical_not() : at::Tensor(),
                               .dropout = is_training() ? options_.attention_dropout : 0,
                               .is_causal = options_.attn_mask_type == AttnMaskType::kCausal});
  return (sequence_first ? y.permute({2, 0, 1, 3}) : y.transpose(1, 2)).flatten(2);
}

std::pair<at::Tensor, at::Tensor> MultiheadAttentionImpl::forward_with_norm(
    const at::Tensor& x, const at::Tensor& attention_mask) {
  TORCH_CHECK_VALUE(
      x.dim() == 3 && x.size(2) == options_.hidden_size, "MultiheadAttention: expects ",
      options_.attn_input_format == AttnInputFormat::kSbhd ? "[sequence, batch, " : "[batch, sequence, ",
      options_.hidden_size, "]; got ", x.sizes());
  const bool needs_mask = options_.attn_mask_type == AttnMaskType::kArbitrary;
  TORCH_CHECK_VALUE(
      needs_mask == attention_mask.defined(), "MultiheadAttention: ",
      needs_mask ? "attn_mask_type is kArbitrary, and no attention_mask was given; pass one to forward()"
                 : "an attention_mask was given, which only attn_mask_type kArbitrary uses; set it, or "
                   "leave the mask out");
  auto [parts, normalized] = layernorm_qkv_->forward_with_norm(x);
  const at::Tensor y = attend_to(heads_of(std::move(parts)), attention_mask);
  return {at::linear(y, proj_->weight, proj_->bias), normalized};
}

at::Tensor MultiheadAttentionImpl::forward(const at::Tensor& x, const at::Tensor& attention_mask) {
  return forward_with_norm(x, attention_mask).first;
}

}  // namespace mantissa
