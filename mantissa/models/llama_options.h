#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/models/rotary.h"

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

}  // namespace mantissa
