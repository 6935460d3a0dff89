#include "mantissa/models/gpt2.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>

#include "mantissa/models/gpt2_config.h"
#include "mantissa/models/linear_internal.h"
#include "mantissa/models/tokens_internal.h"

namespace mantissa {
namespace {

torch::nn::LayerNorm layer_norm(const Gpt2Options& o) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.n_embd}).eps(o.layer_norm_epsilon));
}

}  // namespace

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Options& o)
    : heads_(o.n_head), attn_pdrop_(o.attn_pdrop), resid_pdrop_(o.resid_pdrop) {
  c_attn_ = register_module("c_attn", torch::nn::Linear(o.n_embd, 3 * o.n_embd));
  c_proj_ = register_module("c_proj", torch::nn::Linear(o.n_embd, o.n_embd));
}

at::Tensor Gpt2AttentionImpl::forward(const at::Tensor& x, const CachedLayer& cached) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  std::vector<at::Tensor> parts = linear(c_attn_, x).split(width, 2);
  for (at::Tensor& part : parts) part = part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
  AttentionCall call = causal_attention(parts[0], parts[1], parts[2], cached);
  call.dropout = is_training() ? attn_pdrop_ : 0;
  const at::Tensor y = attend(call).transpose(1, 2).reshape({batch, length, width});
  return at::dropout(linear(c_proj_, y), resid_pdrop_, is_training());
}

Gpt2MlpImpl::Gpt2MlpImpl(const Gpt2Options& o)
    : is_exact_(o.activation_function == "gelu"), resid_pdrop_(o.resid_pdrop) {
  c_fc_ = register_module("c_fc", torch::nn::Linear(o.n_embd, o.inner()));
  c_proj_ = register_module("c_proj", torch::nn::Linear(o.inner(), o.n_embd));
}

at::Tensor Gpt2MlpImpl::forward(const at::Tensor& x) {
  const at::Tensor y = linear(c_proj_, at::gelu(linear(c_fc_, x), is_exact_ ? "none" : "tanh"));
  return at::dropout(y, resid_pdrop_, is_training());
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Options& o) {
  ln_1_ = register_module("ln_1", layer_norm(o));
  attn_ = register_module("attn", Gpt2Attention(o));
  ln_2_ = register_module("ln_2", layer_norm(o));
  mlp_ = register_module("mlp", Gpt2Mlp(o));
}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x, const CachedLayer& cached) {
  const at::Tensor y = x + attn_(ln_1_(x), cached);
  return y + mlp_(ln_2_(y));
}

Gpt2BodyImpl::Gpt2BodyImpl(const Gpt2Options& o) : context_(o.n_positions), embd_pdrop_(o.embd_pdrop) {
  wte_ = register_module("wte", torch::nn::Embedding(o.vocab_size, o.n_embd));
  wpe_ = register_module("wpe", torch::nn::Embedding(o.n_positions, o.n_embd));
  register_module("h", h_);
  for (int64_t i = 0; i < o.n_layer; ++i) h_->push_back(Gpt2Block(o));
  ln_f_ = register_module("ln_f", layer_norm(o));
}

at::Tensor Gpt2BodyImpl::forward(const at::Tensor& tokens, KeyValueCache* cache) {
  const int64_t before = cache ? cache->length() : 0;
  const at::Tensor vectors = embed_tokens("Gpt2", wte_, tokens, context_, before);
  const at::Tensor positions = at::arange(before, before + tokens.size(1), tokens.options().dtype(at::kLong));
  at::Tensor x = at::dropout(vectors + wpe_(positions), embd_pdrop_, is_training());
  for (size_t i = 0; i < h_->size(); ++i) {
    const auto block = [=, its = h_->ptr<Gpt2BlockImpl>(i)](const at::Tensor& h) {
      return its->forward(h, {cache, i});
    };
    x = cache ? block(x) : checkpointed(block, x);
  }
  if (cache) cache->advance(tokens.size(1));
  return ln_f_(x);
}

Gpt2Impl::Gpt2Impl(const Gpt2Options& options) : options_(options) {
  check_gpt2_options(options, "Gpt2");
  transformer_ = register_module("transformer", Gpt2Body(options));
  if (!options.tie_word_embeddings)
    lm_head_ = register_module(
        "lm_head",
        torch::nn::Linear(torch::nn::LinearOptions(options.n_embd, options.vocab_size).bias(false)));
  initialize_weights();
}

void Gpt2Impl::initialize_weights() {
  const at::NoGradGuard no_grad;
  const double std = options_.initializer_range;
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(options_.n_layer));
  for (auto& item : named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 2) {
      parameter.normal_(0.0, item.key().ends_with("c_proj.weight") ? residual_std : std);
    } else if (item.key().ends_with("bias")) {
      parameter.zero_();
    }
  }
}

at::Tensor Gpt2Impl::hidden_states(const at::Tensor& tokens) { return transformer_(tokens); }

at::Tensor Gpt2Impl::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  return output_layer(transformer_(tokens, &cache).narrow(1, -1, 1)).squeeze(1);
}

at::Tensor Gpt2Impl::output_layer(const at::Tensor& x) {
  return options_.tie_word_embeddings ? at::linear(x, transformer_->embeddings()) : linear(lm_head_, x);
}

std::string Gpt2Impl::config_json(at::ScalarType dtype) const { return make_gpt2_config(options_, dtype); }

std::string Gpt2Impl::own_name(const std::string& name) const {
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return "";
  if (name.starts_with("lm_head.")) return options_.tie_word_embeddings ? "" : name;
  return name.starts_with("transformer.") ? name : "transformer." + name;
}

bool Gpt2Impl::is_transposed_in_files(const std::string& name) const {
  return name.ends_with(".c_attn.weight") || name.ends_with(".c_proj.weight") ||
         name.ends_with(".c_fc.weight");
}

}  // namespace mantissa
