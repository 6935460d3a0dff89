#include "mantissa/models/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

#include "mantissa/models/linear_internal.h"
#include "mantissa/models/llama_config.h"
#include "mantissa/models/tokens_internal.h"

namespace mantissa {
namespace {

torch::nn::Linear linear_layer(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

}  // namespace

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaOptions& o) : channels_(o.channels()) {
  const int64_t heads = o.num_attention_heads * channels_, groups = o.key_value_heads() * channels_;
  q_proj_ = register_module("q_proj", linear_layer(o.hidden_size, heads, o.attention_bias));
  k_proj_ = register_module("k_proj", linear_layer(o.hidden_size, groups, o.attention_bias));
  v_proj_ = register_module("v_proj", linear_layer(o.hidden_size, groups, o.attention_bias));
  o_proj_ = register_module("o_proj", linear_layer(heads, o.hidden_size, o.attention_bias));
}

at::Tensor LlamaAttentionImpl::forward(const at::Tensor& x, const RotaryAngles& angles,
                                       const CachedLayer& cached) {
  const int64_t batch = x.size(0), length = x.size(1);
  const auto heads_of = [&](torch::nn::Linear& layer) {  // [B, heads, T, channels]
    return linear(layer, x).view({batch, length, -1, channels_}).transpose(1, 2);
  };
  const at::Tensor query = rotate(heads_of(q_proj_), angles), key = rotate(heads_of(k_proj_), angles);
  const at::Tensor value = heads_of(v_proj_);
  // Under autocast the rotation of 16-bit channels is float32. Attention would round it to 16 bits itself.
  const at::ScalarType dtype = value.scalar_type();
  const at::Tensor y = attend(causal_attention(query.to(dtype), key.to(dtype), value, cached));
  return linear(o_proj_, y.transpose(1, 2).reshape({batch, length, -1}));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaOptions& o) {
  gate_proj_ = register_module("gate_proj", linear_layer(o.hidden_size, o.intermediate_size, o.mlp_bias));
  up_proj_ = register_module("up_proj", linear_layer(o.hidden_size, o.intermediate_size, o.mlp_bias));
  down_proj_ = register_module("down_proj", linear_layer(o.intermediate_size, o.hidden_size, o.mlp_bias));
}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& x) {
  return linear(down_proj_, at::silu(linear(gate_proj_, x)) * linear(up_proj_, x));
}

LlamaLayerImpl::LlamaLayerImpl(const LlamaOptions& o) {
  self_attn_ = register_module("self_attn", LlamaAttention(o));
  mlp_ = register_module("mlp", LlamaMlp(o));
  input_layernorm_ = register_module("input_layernorm", RmsNorm(o.hidden_size, o.rms_norm_eps));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", RmsNorm(o.hidden_size, o.rms_norm_eps));
}

at::Tensor LlamaLayerImpl::forward(const at::Tensor& x, const RotaryAngles& angles,
                                   const CachedLayer& cached) {
  const at::Tensor y = x + self_attn_(input_layernorm_(x), angles, cached);
  return y + mlp_(post_attention_layernorm_(y));
}

LlamaBodyImpl::LlamaBodyImpl(const LlamaOptions& o)
    : context_(o.max_position_embeddings),
      frequencies_(rotary_frequencies(o.channels(), o.rope_theta, o.rope_scaling)) {
  torch::nn::EmbeddingOptions table(o.vocab_size, o.hidden_size);
  if (o.pad_token_id) table.padding_idx(o.pad_token_id);
  embed_tokens_ = register_module("embed_tokens", torch::nn::Embedding(table));
  register_module("layers", layers_);
  for (int64_t i = 0; i < o.num_hidden_layers; ++i) layers_->push_back(LlamaLayer(o));
  norm_ = register_module("norm", RmsNorm(o.hidden_size, o.rms_norm_eps));
}

at::Tensor LlamaBodyImpl::forward(const at::Tensor& tokens, KeyValueCache* cache) {
  const int64_t before = cache ? cache->length() : 0;
  at::Tensor x = mantissa::embed_tokens("Llama", embed_tokens_, tokens, context_, before);
  // Once per device, since nothing may be copied from the host while a CUDA graph is recorded.
  if (frequencies_.device() != x.device()) frequencies_ = frequencies_.to(x.device());
  const RotaryAngles angles = rotary_angles(frequencies_, tokens.size(1), x, before);
  for (size_t i = 0; i < layers_->size(); ++i) {
    const auto layer = [=, its = layers_->ptr<LlamaLayerImpl>(i)](const at::Tensor& h) {
      return its->forward(h, angles, {cache, i});
    };
    x = cache ? layer(x) : checkpointed(layer, x);
  }
  if (cache) cache->advance(tokens.size(1));
  return norm_(x);
}

LlamaImpl::LlamaImpl(const LlamaOptions& options) : options_(options) {
  check_llama_options(options, "Llama");
  model_ = register_module("model", LlamaBody(options));
  if (!options.tie_word_embeddings)
    lm_head_ = register_module("lm_head", linear_layer(options.hidden_size, options.vocab_size, false));
  initialize_weights();
}

void LlamaImpl::initialize_weights() {
  const at::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 2) {
      parameter.normal_(0.0, options_.initializer_range);
    } else if (item.key().ends_with("bias")) {
      parameter.zero_();
    }
  }
  if (options_.pad_token_id) model_->embeddings()[*options_.pad_token_id].zero_();
}

at::Tensor LlamaImpl::hidden_states(const at::Tensor& tokens) { return model_(tokens); }

at::Tensor LlamaImpl::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  return output_layer(model_(tokens, &cache).narrow(1, -1, 1)).squeeze(1);
}

std::string LlamaImpl::config_json(at::ScalarType dtype) const { return make_llama_config(options_, dtype); }

at::Tensor LlamaImpl::output_layer(const at::Tensor& x) {
  return options_.tie_word_embeddings ? at::linear(x, model_->embeddings()) : linear(lm_head_, x);
}

}  // namespace mantissa
