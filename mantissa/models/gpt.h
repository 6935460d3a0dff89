#pragma once

#include <cstdint>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "mantissa/core/activation_checkpointing.h"
#include "mantissa/models/causal_model.h"
#include "mantissa/models/key_value_cache.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

struct GptOptions {
  int64_t layers = 4;
  /// The size of a token's vector; a multiple of heads.
  int64_t width = 256;
  int64_t heads = 4;
  /// The longest sequence. There is one learned vector per position.
  int64_t context = 128;
  int64_t vocabulary = 256;
};

/// Computes x + projection(attention(norm1(x))), then x + contract(gelu(expand(norm2(x)))).
///
/// Shapes: input and output are [B, T, width]; position t attends to 0..t.
class GptBlockImpl final : public torch::nn::Module, public HasAttention {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x, const CachedLayer& cached = {});

 private:
  at::Tensor self_attention(const at::Tensor& x, const CachedLayer& cached);

  int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, projection_{nullptr}, expand_{nullptr}, contract_{nullptr};
};
TORCH_MODULE(GptBlock);

/// A decoder-only transformer over tokens in the form of GPT-2: layer norm before each part, learned
/// positions and exact GELU. Unlike GPT-2 it has a separate output layer, without bias.
///
/// Shapes: [B, T] of int64 or int32, 1 <= T <= context -> [B, T, vocabulary], not normalized.
/// Units:  weights start from N(0, 0.02), drawn from the global generator; the two layers of each block that
///         add to the residual start from N(0, 0.02 / sqrt(2 * layers)); biases start from 0.
/// Errors: c10::ValueError for options out of range and for sequences that are too long; c10::TypeError for
///         tokens that are not integers; c10::IndexError, on the CPU, for a token outside of the vocabulary.
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
class GptImpl final : public CausalModel, public HasActivationCheckpointing {
 public:
  explicit GptImpl(const GptOptions& options);
  at::Tensor hidden_states(const at::Tensor& tokens) override;
  at::Tensor output_layer(const at::Tensor& hidden_states) override;
  int64_t context() const override { return options_.context; }
  int64_t vocabulary() const override { return options_.vocabulary; }
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache) override;

 private:
  void initialize_weights();
  /// Returns the input of the output layer, [B, T, width].
  at::Tensor body(const at::Tensor& tokens, KeyValueCache* cache);

  GptOptions options_;
  torch::nn::Embedding token_embedding_{nullptr}, position_embedding_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace mantissa
