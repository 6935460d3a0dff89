#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/models/key_value_cache.h"
#include "mantissa/models/public_model.h"

namespace mantissa {

/// A model that predicts the next token of a text: forward() takes tokens [B, T] and returns logits [B, T, vocabulary].
class CausalModel : public PublicModel {
 public:
  at::Tensor forward(const at::Tensor& tokens) override { return output_layer(hidden_states(tokens)); }
  /// The first part of forward(): everything before the output layer, for a loss that never has all logits in memory
  /// (precision/chunked_cross_entropy.h).
  ///
  /// Shapes: [B, T] -> [B, T, width].
  virtual at::Tensor hidden_states(const at::Tensor& tokens) = 0;
  /// The second part: [..., width] -> [..., vocabulary].
  virtual at::Tensor output_layer(const at::Tensor& hidden_states) = 0;
  /// The longest sequence.
  virtual int64_t context() const = 0;
  virtual int64_t vocabulary() const = 0;
  /// The tokens that end a text.
  virtual std::vector<int64_t> stop_tokens() const { return {}; }
  /// Returns the text of a config.json for Hugging Face's transformers, for weights of `dtype`; "" if they do not know the model.
  /// Errors: c10::ValueError for a dtype that transformers does not have.
  virtual std::string config_json(at::ScalarType /*dtype*/) const { return ""; }
  /// Reads tokens that follow those in `cache`, adds them to it, and returns the logits of the token that comes after
  /// the last one.
  ///
  /// Shapes:   [B, T] -> [B, vocabulary].
  /// Numerics: equal to the last position of forward() over all tokens up to rounding, because products of one position
  ///           sum in another order than products of many.
  /// Errors:   those of forward() for the whole sequence, and those of KeyValueCache::append(). The cache is as before
  ///           then.
  virtual at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache) = 0;
};

}  // namespace mantissa
