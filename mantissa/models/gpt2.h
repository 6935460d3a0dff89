#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "mantissa/core/activation_checkpointing.h"
#include "mantissa/models/causal_model.h"
#include "mantissa/models/gpt2_options.h"
#include "mantissa/models/key_value_cache.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

/// Position t attends to 0..t.
///
/// Shapes: [B, T, n_embd] -> the same.
class Gpt2AttentionImpl final : public torch::nn::Module, public HasAttention {
 public:
  explicit Gpt2AttentionImpl(const Gpt2Options& options);
  at::Tensor forward(const at::Tensor& x, const CachedLayer& cached);

 private:
  int64_t heads_;
  double attn_pdrop_, resid_pdrop_;
  torch::nn::Linear c_attn_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl final : public torch::nn::Module {
 public:
  explicit Gpt2MlpImpl(const Gpt2Options& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  bool is_exact_;
  double resid_pdrop_;
  torch::nn::Linear c_fc_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Mlp);

/// Computes x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class Gpt2BlockImpl final : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const Gpt2Options& options);
  at::Tensor forward(const at::Tensor& x, const CachedLayer& cached);

 private:
  torch::nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  Gpt2Attention attn_{nullptr};
  Gpt2Mlp mlp_{nullptr};
};
TORCH_MODULE(Gpt2Block);

/// GPT-2 without its output layer.
class Gpt2BodyImpl final : public torch::nn::Module, public HasActivationCheckpointing {
 public:
  explicit Gpt2BodyImpl(const Gpt2Options& options);
  /// Reads tokens that follow those in `cache`, if there is one, and adds them to it.
  ///
  /// Shapes: [B, T] -> [B, T, n_embd].
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  const at::Tensor& embeddings() const { return wte_->weight; }

 private:
  int64_t context_;
  double embd_pdrop_;
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};
  torch::nn::ModuleList h_;
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2Body);

/// GPT-2 with the parameters' names of Hugging Face's GPT2LMHeadModel, such as "transformer.h.0.attn.c_attn.weight".
/// Linear layers have weights [out, in], as all others here, so that every mode and adapter works. Hugging Face's files have
/// them transposed, and load_weight_file() (weight_form.h) and save_gpt2() turn them.
///
/// Shapes:   [B, T] of int64 or int32, 1 <= T <= n_positions -> [B, T, vocab_size], not normalized.
/// Units:    weights start from N(0, initializer_range), drawn from the global generator; the two layers of each block that
///           add to the residual start from N(0, initializer_range / sqrt(2 * n_layer)); biases start from 0.
/// Numerics: logits equal those of transformers' GPT2LMHeadModel in float32 within 1e-5 of the largest value, gradients within 1e-5:
///           products with transposed weights and GELU in one operation round otherwise. Sequences have no padding.
/// Errors:   c10::ValueError for options out of range and for sequences that are too long; c10::TypeError for tokens that
///           are not integers; c10::IndexError, on the CPU, for a token outside of the vocabulary.
/// Source:   Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
/// Example:  gpt2_test.cpp, Gpt2.NamesOfParameters
class Gpt2Impl final : public CausalModel {
 public:
  explicit Gpt2Impl(const Gpt2Options& options);
  at::Tensor hidden_states(const at::Tensor& tokens) override;
  at::Tensor output_layer(const at::Tensor& hidden_states) override;
  int64_t context() const override { return options_.n_positions; }
  int64_t vocabulary() const override { return options_.vocab_size; }
  std::vector<int64_t> stop_tokens() const override { return options_.eos_token_id; }
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache) override;
  std::string config_json(at::ScalarType dtype) const override;
  /// Adds the prefix "transformer.", which GPT-2's first files lack, and leaves out the masks that they have.
  std::string own_name(const std::string& name) const override;
  bool is_transposed_in_files(const std::string& name) const override;
  const Gpt2Options& options() const { return options_; }

 private:
  void initialize_weights();

  Gpt2Options options_;
  Gpt2Body transformer_{nullptr};
  torch::nn::Linear lm_head_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace mantissa
