#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/core/activation_checkpointing.h"
#include "mantissa/models/causal_model.h"
#include "mantissa/models/key_value_cache.h"
#include "mantissa/models/llama_options.h"
#include "mantissa/models/rms_norm.h"
#include "mantissa/models/rotary.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

/// Attention with rotary positions and grouped heads; position t attends to 0..t.
///
/// Shapes: [B, T, hidden_size] -> the same.
class LlamaAttentionImpl final : public torch::nn::Module, public HasAttention {
 public:
  explicit LlamaAttentionImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const CachedLayer& cached);

 private:
  int64_t channels_;
  torch::nn::Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};
TORCH_MODULE(LlamaAttention);

/// Computes down(silu(gate(x)) * up(x)).
class LlamaMlpImpl final : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
TORCH_MODULE(LlamaMlp);

/// Computes x + attention(norm(x)), then x + mlp(norm(x)).
class LlamaLayerImpl final : public torch::nn::Module {
 public:
  explicit LlamaLayerImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles, const CachedLayer& cached);

 private:
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  LlamaAttention self_attn_{nullptr};
  LlamaMlp mlp_{nullptr};
};
TORCH_MODULE(LlamaLayer);

/// Llama without its output layer.
class LlamaBodyImpl final : public torch::nn::Module, public HasActivationCheckpointing {
 public:
  explicit LlamaBodyImpl(const LlamaOptions& options);
  /// Reads tokens that follow those in `cache`, if there is one, and adds them to it.
  ///
  /// Shapes: [B, T] -> [B, T, hidden_size].
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  const at::Tensor& embeddings() const { return embed_tokens_->weight; }

 private:
  int64_t context_;
  at::Tensor
      frequencies_;  ///< not a buffer, because Hugging Face's files have none and a mode would round it
  torch::nn::Embedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_;
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(LlamaBody);

/// Llama 1 to 3, with the parameters' names of Hugging Face's LlamaForCausalLM, such as
/// "model.layers.0.self_attn.q_proj.weight".
///
/// Shapes:   [B, T] of int64 or int32, 1 <= T <= max_position_embeddings -> [B, T, vocab_size], not normalized.
/// Units:    weights start from N(0, initializer_range), drawn from the global generator; biases start from 0.
/// Numerics: logits equal those of transformers' LlamaForCausalLM with attn_implementation="sdpa" bit for bit on the
///           CPU in float32, and so do gradients without groups. Sequences have no padding.
/// Errors:   c10::ValueError for options out of range and for sequences that are too long; c10::TypeError for
///           tokens that are not integers; c10::IndexError, on the CPU, for a token outside of the vocabulary.
/// Source:   Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.
/// Example:  llama_test.cpp, Llama.NamesOfParameters
class LlamaImpl final : public CausalModel {
 public:
  explicit LlamaImpl(const LlamaOptions& options);
  at::Tensor hidden_states(const at::Tensor& tokens) override;
  at::Tensor output_layer(const at::Tensor& hidden_states) override;
  int64_t context() const override { return options_.max_position_embeddings; }
  int64_t vocabulary() const override { return options_.vocab_size; }
  std::vector<int64_t> stop_tokens() const override { return options_.eos_token_id; }
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache) override;
  std::string config_json(at::ScalarType dtype) const override;
  const LlamaOptions& options() const { return options_; }

 private:
  void initialize_weights();

  LlamaOptions options_;
  LlamaBody model_{nullptr};
  torch::nn::Linear lm_head_{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace mantissa
