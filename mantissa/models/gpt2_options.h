#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mantissa {

/// The members have the names and the defaults of Hugging Face's GPT2Config, which are those of GPT-2 small;
/// gpt2_config.h reads and writes them as config.json.
struct Gpt2Options {
  int64_t vocab_size = 50257;
  /// The longest sequence.
  int64_t n_positions = 1024;
  /// The size of a token's vector; a multiple of n_head.
  int64_t n_embd = 768;
  int64_t n_layer = 12;
  int64_t n_head = 12;
  /// The width of the hidden layer of an MLP; 0: 4 * n_embd.
  int64_t n_inner = 0;
  /// "gelu_new" and "gelu_pytorch_tanh", which are the same function, or "gelu", which is exact.
  std::string activation_function = "gelu_new";
  /// Dropout in training: of what a block adds, of the embeddings, and of the probabilities of attention.
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  /// The standard deviation of new weights.
  double initializer_range = 0.02;
  /// The output layer is the table of embeddings.
  bool tie_word_embeddings = true;
  /// The tokens that begin and end a text. The model does not use them.
  std::optional<int64_t> bos_token_id = 50256;
  std::vector<int64_t> eos_token_id = {50256};

  int64_t inner() const { return n_inner ? n_inner : 4 * n_embd; }

  bool operator==(const Gpt2Options&) const = default;
};

/// The names of GPT-2's public sizes: gpt2 (124 million parameters), gpt2-medium (355), gpt2-large (774), gpt2-xl (1558).
const std::vector<std::string>& gpt2_sizes();

/// Returns the options of one of them.
/// Errors: c10::ValueError, with the names, for another name.
Gpt2Options gpt2_options(const std::string& size);

/// Errors: c10::ValueError, which begins with `who` and names the member, for options out of range.
void check_gpt2_options(const Gpt2Options& options, const std::string& who);

}  // namespace mantissa
