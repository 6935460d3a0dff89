#include "mantissa/models/key_value_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

at::Tensor room_for(const at::Tensor& first, int64_t capacity) {
  return at::empty({first.size(0), first.size(1), capacity, first.size(3)}, first.options());
}

}  // namespace

KeyValueCache::KeyValueCache(int64_t capacity) : capacity_(capacity) {
  TORCH_CHECK_VALUE(capacity > 0, "KeyValueCache: the capacity is ", capacity, "; give a number above 0");
}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(size_t layer, const at::Tensor& key,
                                                        const at::Tensor& value) {
  const int64_t positions = key.size(2), length = length_ + positions;
  TORCH_CHECK_VALUE(length <= capacity_, "KeyValueCache: ", positions, " positions after ", length_,
                    " are more than its capacity of ", capacity_, "; make it larger, or clear() it");
  if (layers_.size() <= layer) layers_.resize(layer + 1);
  Layer& kept = layers_[layer];
  if (!kept.keys.defined()) kept = {room_for(key, capacity_), room_for(value, capacity_)};
  TORCH_CHECK_VALUE(kept.keys.size(0) == key.size(0), "KeyValueCache: it has ", kept.keys.size(0),
                    " sequences, and ", key.size(0), " are added; use one cache per batch");
  kept.keys.narrow(2, length_, positions).copy_(key);
  kept.values.narrow(2, length_, positions).copy_(value);
  return {kept.keys.narrow(2, 0, length), kept.values.narrow(2, 0, length)};
}

AttentionCall causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const CachedLayer& cached) {
  if (!cached.cache) return {.query = query, .key = key, .value = value, .is_causal = true};
  const auto [keys, values] = cached.cache->append(cached.layer, key, value);
  const int64_t queries = query.size(2), positions = keys.size(2);
  AttentionCall call{.query = query, .key = keys, .value = values, .is_causal = queries == positions};
  // The last position attends to all, which needs no mask.
  if (!call.is_causal && queries > 1)
    call.mask = at::ones({queries, positions}, query.options().dtype(at::kBool)).tril(positions - queries);
  return call;
}

}  // namespace mantissa
