#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/weights/attention.h"

namespace mantissa {

/// The keys and values of the tokens that a model has read, so that the next token costs one position instead of all.
///
/// Memory:  2 * layers * batch * groups * channels values per position, in the dtype in which the model computes them.
///          The first append() reserves them for the whole capacity; the system provides a page when it is first
///          written to.
/// Threads: one at a time.
/// Example: key_value_cache_test.cpp, KeyValueCache.KeepsWhatWasAppended
class KeyValueCache {
 public:
  /// `capacity`: the most positions.
  /// Errors: c10::ValueError for a capacity below 1.
  explicit KeyValueCache(int64_t capacity);

  int64_t capacity() const { return capacity_; }
  /// Returns the number of positions that it has.
  int64_t length() const { return length_; }
  /// Adds the keys and values of one layer's next positions, and returns those of all positions so far. length() does
  /// not change until advance(), so that an exception between the layers leaves the cache as it was.
  ///
  /// Shapes: [B, groups, T, channels] -> [B, groups, length() + T, channels], views of the cache.
  /// Errors: c10::ValueError if there is no room for T positions, and for a batch that is not the cache's.
  std::pair<at::Tensor, at::Tensor> append(size_t layer, const at::Tensor& key, const at::Tensor& value);
  /// Ends a forward pass in which every layer appended `positions` positions.
  void advance(int64_t positions) { length_ += positions; }
  /// Forgets all positions and keeps the memory.
  void clear() { length_ = 0; }

 private:
  struct Layer {
    at::Tensor keys, values;  ///< [B, groups, capacity, channels]
  };
  int64_t capacity_, length_ = 0;
  std::vector<Layer> layers_;
};

/// The part of a cache that belongs to one attention. By default there is none, and a sequence is read from its start.
struct CachedLayer {
  KeyValueCache* cache = nullptr;
  size_t layer = 0;
};

/// Returns the attention of positions to themselves and to all earlier ones, those in the cache included, to which it
/// adds the keys and values.
///
/// Shapes:   query [B, heads, T, channels], key and value [B, groups, T, channels].
/// Numerics: without a cache and with an empty one, the calls are the same.
AttentionCall causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const CachedLayer& cached);

}  // namespace mantissa
