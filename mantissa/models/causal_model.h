#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/models/key_value_cache.h"
#include "mantissa/models/tensor_module.h"

namespace mantissa {

/// A model that predicts the next token of a text: forward() takes tokens [B, T] and returns logits [B, T, vocabulary].
class CausalModel : public TensorModule {
 public:
  /// The longest sequence.
  virtual int64_t context() const = 0;
  virtual int64_t vocabulary() const = 0;
  /// The tokens that end a text.
  virtual std::vector<int64_t> stop_tokens() const { return {}; }
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
