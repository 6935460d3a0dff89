#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/rms_norm.h"
#include "mantissa/models/rotary.h"
#include "mantissa/models/tensor_module.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

/// The members have the names and the defaults of Hugging Face's LlamaConfig; llama_config.h reads and writes them as
/// config.json.
struct LlamaOptions {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  /// Each key and value serves num_attention_heads / num_key_value_heads adjacent heads; 0: one head each.
  int64_t num_key_value_heads = 0;
  /// The channels of a head, an even number; 0: hidden_size / num_attention_heads.
  int64_t head_dim = 0;
  /// The longest sequence.
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling = {};
  bool attention_bias = false;
  bool mlp_bias = false;
  /// The output layer is the table of embeddings.
  bool tie_word_embeddings = false;
  /// The standard deviation of new weights.
  double initializer_range = 0.02;
  /// The token whose vector starts at 0 and is not trained.
  std::optional<int64_t> pad_token_id = {};
  /// The tokens that begin and end a text. The model does not use them; they are kept for config.json.
  std::optional<int64_t> bos_token_id = 1;
  std::vector<int64_t> eos_token_id = {2};

  /// Returns num_key_value_heads and head_dim with their defaults resolved.
  int64_t key_value_heads() const { return num_key_value_heads ? num_key_value_heads : num_attention_heads; }
  int64_t channels() const { return head_dim ? head_dim : hidden_size / num_attention_heads; }

  bool operator==(const LlamaOptions&) const = default;
};

/// Errors: c10::ValueError, which begins with `who` and names the member, for options out of range.
void check_llama_options(const LlamaOptions& options, const std::string& who);

/// Attention with rotary positions and grouped heads; position t attends to 0..t.
///
/// Shapes: [B, T, hidden_size] -> the same.
class LlamaAttentionImpl final : public torch::nn::Module, public HasAttention {
 public:
  explicit LlamaAttentionImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles);

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
  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles);

 private:
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  LlamaAttention self_attn_{nullptr};
  LlamaMlp mlp_{nullptr};
};
TORCH_MODULE(LlamaLayer);

/// Llama without its output layer.
class LlamaBodyImpl final : public TensorModule {
 public:
  explicit LlamaBodyImpl(const LlamaOptions& options);
  /// Shapes: [B, T] -> [B, T, hidden_size].
  at::Tensor forward(const at::Tensor& tokens) override;
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
/// Numerics: equal to transformers' LlamaForCausalLM with attn_implementation="sdpa" in the order of operations, on
///           the CPU bit for bit. Sequences have no padding.
/// Errors:   c10::ValueError for options out of range and for sequences that are too long; c10::TypeError for
///           tokens that are not integers; c10::IndexError, on the CPU, for a token outside of the vocabulary.
/// Source:   Touvron et al. 2023, arXiv:2302.13971; Grattafiori et al. 2024, arXiv:2407.21783.
/// Example:  llama_test.cpp, Llama.NamesOfParameters
class LlamaImpl final : public TensorModule {
 public:
  explicit LlamaImpl(const LlamaOptions& options);
  at::Tensor forward(const at::Tensor& tokens) override;
  const LlamaOptions& options() const { return options_; }

 private:
  void initialize_weights();

  LlamaOptions options_;
  LlamaBody model_{nullptr};
  torch::nn::Linear lm_head_{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace mantissa
