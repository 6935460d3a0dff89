#pragma once

// Attention of a few queries, for all vector tiers. This header follows the rules of
// attention_blocked_internal.h. Keys and values are used so rarely that they are widened where they are used,
// and never packed.

#include "mantissa/kernels/cpu/attention_blocked_internal.h"
#include "mantissa/kernels/cpu/gemv_internal.h"

namespace mantissa::kernels::cpu {

/// True if attention_rows() takes `g`: for up to six queries, single rows are faster than packing the keys.
template <class V>
bool is_few_rows(const Attention& g) {
  return g.queries <= 6 && g.width >= V::kLanes && g.key.col_stride == 1 && g.value.col_stride == 1;
}

/// Widens the row at `index` to floats, followed by zeros up to a whole vector.
template <class V>
void widen_row(const ConstMatrix& x, int64_t index, int64_t count, float* to) {
  // The row is one step of panels whose lanes are its elements.
  pack<V, V::kLanes>(x.element, x.element, {element_at<V>(x, index), x.col_stride, 0, count}, count, 1, to);
}

/// Turns scores into weights relative to the largest score so far, and updates `largest` and `sum`. Returns
/// the factor for earlier sums. `scores` has room up to a whole vector.
template <class V>
float weigh_row(int64_t keys, float* scores, float& largest, float& sum) {
  for (int64_t i = keys; i % V::kLanes != 0; ++i) scores[i] = -__builtin_inff();
  alignas(64) float lanes[V::kLanes];
  auto most = V::set(largest);
  for (int64_t i = 0; i < keys; i += V::kLanes) most = V::max(V::load(scores + i), most);
  V::store(lanes, most);
  const float before = largest;
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  auto added = V::zero();
  for (int64_t i = 0; i < keys; i += V::kLanes) {
    const auto weight = exp<V>(V::sub(V::load(scores + i), V::set(largest)));
    V::store(scores + i, weight);
    added = V::add(added, weight);
  }
  V::store(lanes, exp<V>(V::set(before - largest)));
  const float factor = lanes[0];
  V::store(lanes, added);
  sum *= factor;
  for (const float lane : lanes) sum += lane;
  return factor;
}

template <class V>
void attend_row(const Attention& g, int64_t batch, int64_t head, int64_t query,
                const AttentionScratch<V>& scratch) {
  const int64_t kv_head = head / (g.heads / g.kv_heads), width = AttentionShape<V>::up(g.width, V::kLanes);
  const ConstMatrix key = of_head<V>(g.key, batch, kv_head), value = of_head<V>(g.value, batch, kv_head);
  const ConstMatrix rows = of_head<V>(g.query, batch, head);
  float *const row = scratch.queries, *const outs = scratch.outs, *const added = outs + width;
  widen_row<V>(rows, query * rows.row_stride, g.width, row);
  multiply_all<V>(row, width, g.scale);
  for (int64_t d = 0; d < width; ++d) outs[d] = 0;
  float largest = -FLT_MAX, sum = 0;

  const int64_t end = g.causal ? least<V>(g.keys, query + 1) : g.keys;
  for (int64_t k = 0; k < end; k += scratch.block_keys) {
    const int64_t keys = least<V>(scratch.block_keys, end - k);
    with_elements<V>(key.element, key.element, [&](auto source) {
      using Source = decltype(source);
      const auto* const from = static_cast<const typename Source::Storage*>(key.data) + k * key.row_stride;
      add_columns<V, Source>(row, from, key.row_stride, g.width, keys, scratch.scores);
    });
    if (g.mask.data != nullptr) {
      const ConstMatrix mask = of_head<V>(g.mask, batch, head);
      widen_row<V>(mask, query * mask.row_stride + k * mask.col_stride, keys, scratch.mask);
      for (int64_t i = 0; i < keys; ++i) scratch.scores[i] += scratch.mask[i];
    }
    const float factor = weigh_row<V>(keys, scratch.scores, largest, sum);
    with_elements<V>(value.element, value.element, [&](auto source) {
      using Source = decltype(source);
      const auto* const from =
          static_cast<const typename Source::Storage*>(value.data) + k * value.row_stride;
      add_rows<V, Source>(scratch.scores, from, value.row_stride, keys, g.width, added);
    });
    for (int64_t d = 0; d < g.width; ++d) outs[d] = outs[d] * factor + added[d];
  }

  multiply_all<V>(outs, width, sum == 0 ? 1 : 1 / sum);
  store_rows<V>(outs, width, 1, g.width, of_head<V>(g.out, batch, head), query);
  g.logsumexp.data[batch * g.logsumexp.batch_stride + head * g.logsumexp.head_stride +
                   query * g.logsumexp.row_stride] = sum == 0 ? 0 : largest + __builtin_logf(sum);
}

template <class V>
void attention_rows(const Attention& g, const AttentionPart& part, float* memory) {
  const AttentionScratch<V> scratch(g, memory);
  for (int64_t query = part.query_begin; query < part.query_end; ++query)
    attend_row<V>(g, part.batch, part.head, query, scratch);
}

}  // namespace mantissa::kernels::cpu
