#include "mantissa/models/gpt.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <c10/util/Exception.h>

#include "mantissa/models/linear_internal.h"
#include "mantissa/models/tokens_internal.h"

namespace mantissa {
namespace {

torch::nn::LayerNorm layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

GptBlockImpl::GptBlockImpl(const GptOptions& options) : heads_(options.heads) {
  const int64_t width = options.width;
  norm1_ = register_module("norm1", layer_norm(width));
  qkv_ = register_module("qkv", torch::nn::Linear(width, 3 * width));
  projection_ = register_module("projection", torch::nn::Linear(width, width));
  norm2_ = register_module("norm2", layer_norm(width));
  expand_ = register_module("expand", torch::nn::Linear(width, 4 * width));
  contract_ = register_module("contract", torch::nn::Linear(4 * width, width));
}

at::Tensor GptBlockImpl::forward(const at::Tensor& x, const CachedLayer& cached) {
  const at::Tensor y = x + self_attention(norm1_(x), cached);
  return y + linear(contract_, at::gelu(linear(expand_, norm2_(y))));
}

at::Tensor GptBlockImpl::self_attention(const at::Tensor& x, const CachedLayer& cached) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  std::vector<at::Tensor> parts = linear(qkv_, x).split(width, 2);
  for (at::Tensor& part : parts) {  // [B, T, width] -> [B, heads, T, width / heads]
    part = part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
  }
  const at::Tensor y = attend(causal_attention(parts[0], parts[1], parts[2], cached));
  return linear(projection_, y.transpose(1, 2).reshape({batch, length, width}));
}

GptImpl::GptImpl(const GptOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.layers > 0 && options.width > 0 && options.heads > 0 && options.context > 0 &&
                        options.vocabulary > 0,
                    "Gpt: every size must be positive; got layers ", options.layers, ", width ",
                    options.width, ", heads ", options.heads, ", context ", options.context, ", vocabulary ",
                    options.vocabulary);
  TORCH_CHECK_VALUE(options.width % options.heads == 0, "Gpt: width ", options.width,
                    " is not a multiple of heads ", options.heads, "; change one of them");
  token_embedding_ =
      register_module("token_embedding", torch::nn::Embedding(options.vocabulary, options.width));
  position_embedding_ =
      register_module("position_embedding", torch::nn::Embedding(options.context, options.width));
  register_module("blocks", blocks_);
  for (int64_t i = 0; i < options.layers; ++i) blocks_->push_back(GptBlock(options));
  norm_ = register_module("norm", layer_norm(options.width));
  head_ = register_module(
      "head", torch::nn::Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)));
  initialize_weights();
}

// The order is that of registration, so that the Python twin draws the same numbers from the same seed.
void GptImpl::initialize_weights() {
  at::NoGradGuard no_grad;
  const double residual_std = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  for (auto& item : named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 2) {
      const bool residual =
          ends_with(item.key(), "projection.weight") || ends_with(item.key(), "contract.weight");
      parameter.normal_(0.0, residual ? residual_std : 0.02);
    } else if (ends_with(item.key(), "bias")) {
      parameter.zero_();
    }
  }
}

at::Tensor GptImpl::hidden_states(const at::Tensor& tokens) { return body(tokens, nullptr); }

at::Tensor GptImpl::output_layer(const at::Tensor& x) { return linear(head_, x); }

at::Tensor GptImpl::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  return output_layer(body(tokens, &cache).narrow(1, -1, 1)).squeeze(1);
}

at::Tensor GptImpl::body(const at::Tensor& tokens, KeyValueCache* cache) {
  const int64_t before = cache ? cache->length() : 0;
  const at::Tensor vectors = embed_tokens("Gpt", token_embedding_, tokens, options_.context, before);
  const at::Tensor positions = at::arange(before, before + tokens.size(1), tokens.options().dtype(at::kLong));
  at::Tensor x = vectors + position_embedding_(positions);
  for (size_t i = 0; i < blocks_->size(); ++i) {
    const auto block = [=, its = blocks_->ptr<GptBlockImpl>(i)](const at::Tensor& h) {
      return its->forward(h, {cache, i});
    };
    x = cache ? block(x) : checkpointed(block, x);
  }
  if (cache) cache->advance(tokens.size(1));
  return norm_(x);
}

}  // namespace mantissa
