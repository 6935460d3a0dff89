#pragma once

// The gradient of attention, written once for all vector tiers. This header follows the rules of
// attention_blocked_internal.h.

#include "mantissa/kernels/cpu/attention_blocked_internal.h"

namespace mantissa::kernels::cpu {

/// A micro-kernel's left operand that reads panels of scores: its rows are keys, its steps are queries.
/// Element (row, k) is at [row * kNR + k]; the next panel begins `panel` floats later.
template <class V>
struct AcrossPanels {
  static constexpr int64_t kNR = AttentionShape<V>::kNR, kRowStep = kNR, kStep = 1;
  int64_t run(int64_t depth) const { return least<V>(depth, kNR); }
  void next_run() { at += panel - kNR; }
  const float* at;
  int64_t panel;
};

/// The scratch memory of attention_gradient_blocked() for the gradient of `keys` keys.
template <class V>
struct GradientScratch {
  using Shape = AttentionShape<V>;
  GradientScratch(const Attention& g, int64_t keys, float* memory)
      : block_keys(Shape::keys(g, kGradientKeyFloats, kGradientKeys)),
        block_queries(Shape::queries(g, kGradientQueryFloats, kGradientQueries)),
        row_stride(Shape::up(g.width, Shape::kNR)),
        key_rows(Shape::take(memory, size, block_keys * g.width)),
        value_rows(Shape::take(memory, size, block_keys * g.width)),
        key_columns(Shape::take(memory, size, Shape::up(g.width, V::kMR) * block_keys)),
        query_rows(Shape::take(memory, size, block_queries * g.width)),
        grad_out_rows(Shape::take(memory, size, block_queries * g.width)),
        query_columns(Shape::take(memory, size, row_stride * block_queries)),
        grad_out_columns(Shape::take(memory, size, row_stride * block_queries)),
        out_rows(Shape::take(memory, size, Shape::kNR * g.width)),
        logsumexp(Shape::take(memory, size, block_queries)),
        offsets(Shape::take(memory, size, block_queries)),
        scale(Shape::take(memory, size, Shape::kNR)),
        weights(Shape::take(memory, size, block_keys * block_queries)),
        grad_scores(Shape::take(memory, size, block_keys * block_queries)),
        mask(Shape::take(memory, size, g.mask.data ? block_keys * Shape::kNR : 0)),
        grad_queries(Shape::take(memory, size, block_queries * g.width)),
        grad_keys(Shape::take(memory, size, keys * row_stride)),
        grad_values(Shape::take(memory, size, keys * row_stride)) {}
  int64_t size = 0;
  int64_t block_keys, block_queries;
  int64_t row_stride;                          ///< of grad_keys and grad_values
  float *key_rows, *value_rows, *key_columns;  ///< micro-panels of MR, rows or columns as lanes
  float *query_rows, *grad_out_rows;           ///< micro-panels of NR, rows as lanes
  float *query_columns, *grad_out_columns;     ///< micro-panels of NR, columns as lanes
  float* out_rows;                             ///< of one panel
  float *logsumexp, *offsets;                  ///< logsumexp of each query; row sums of dO * O
  float* scale;                                ///< the same value for each query of a panel
  float *weights, *grad_scores;                ///< consecutive panels of block_keys keys each
  float* mask;                                 ///< of one panel
  float* grad_queries;                         ///< transposed sums
  float *grad_keys, *grad_values;              ///< sums over all blocks
};

template <class V>
int64_t gradient_blocked_scratch_size(const Attention& g, int64_t keys) {
  return GradientScratch<V>(g, keys, nullptr).size;
}

/// The operands of one head.
struct GradientHead {
  ConstMatrix query, key, value, mask, out, grad_out;
  const float* logsumexp = nullptr;
};

/// Packs a block of queries, multiplied by the scale, with its output gradients, logsumexp and offsets.
template <class V>
void prepare_queries(const Attention& g, const GradientHead& head, int64_t query, int64_t queries,
                     const GradientScratch<V>& scratch) {
  using Shape = AttentionShape<V>;
  constexpr int64_t kNR = Shape::kNR;
  pack_rows<V, kNR>(head.query, query, queries, g.width, scratch.query_rows);
  pack_rows<V, kNR>(head.grad_out, query, queries, g.width, scratch.grad_out_rows);
  pack_columns<V, kNR>(head.query, query, queries, g.width, scratch.query_columns);
  pack_columns<V, kNR>(head.grad_out, query, queries, g.width, scratch.grad_out_columns);
  multiply_all<V>(scratch.query_rows, Shape::up(queries, kNR) * g.width, g.scale);
  multiply_all<V>(scratch.query_columns, scratch.row_stride * queries, g.scale);
  for (int64_t i = 0; i < queries; ++i)
    scratch.logsumexp[i] = head.logsumexp[(query + i) * g.logsumexp.row_stride];
  for (int64_t i = queries; i % kNR != 0; ++i) scratch.logsumexp[i] = 0;
  for (int64_t j = 0; j < queries; j += kNR) {
    const int64_t here = least<V>(kNR, queries - j);
    pack_rows<V, kNR>(head.out, query + j, here, g.width, scratch.out_rows);
    for (int64_t v = 0; v < here; v += V::kLanes) {
      auto sum = V::zero();
      for (int64_t d = 0; d < g.width; ++d)
        sum = V::fma(V::load(scratch.grad_out_rows + j * g.width + d * kNR + v),
                     V::load(scratch.out_rows + d * kNR + v), sum);
      V::store(scratch.offsets + j + v, sum);
    }
  }
}

/// Computes one panel's weights from its scores, and the gradient of the scores from that of the weights, in
/// place.
template <class V>
void weigh_gradient(const ScorePanel& panel, const float* logsumexp, const float* offsets, float* weights,
                    float* grads) {
  constexpr int64_t kNR = AttentionShape<V>::kNR;
  for (int64_t v = 0; v < panel.vectors * V::kLanes; v += V::kLanes) {
    const auto largest = V::load(logsumexp + v), offset = V::load(offsets + v);
    for (int64_t i = v; i < panel.keys * kNR; i += kNR) {
      const auto weight = exp<V>(V::sub(V::load(weights + i), largest));
      V::store(weights + i, weight);
      V::store(grads + i, V::mul(weight, V::sub(V::load(grads + i), offset)));
    }
  }
}

/// Computes to[key][column] += the sum over the block's queries of panels(key, query) * columns(query,
/// column).
template <class V>
void add_over_queries(const Attention& g, const ScorePanel& block, const float* panels, int64_t panel_floats,
                      const float* columns, float* to, int64_t row_stride) {
  constexpr int64_t kNR = AttentionShape<V>::kNR;
  for (int64_t d = 0; d < g.width; d += kNR) {
    const int64_t vectors = (least<V>(g.width - d, kNR) + V::kLanes - 1) / V::kLanes;
    for (int64_t i = 0; i < block.keys; i += V::kMR) {
      // This is the first panel that sees the first of these keys; it has scores for all of them.
      const int64_t hidden = g.causal ? block.key + i - block.query : 0;
      const int64_t first = hidden > 0 ? hidden / kNR * kNR : 0;
      if (first >= block.queries) break;
      const AcrossPanels<V> rows = {panels + first / kNR * panel_floats + i * kNR, panel_floats};
      MicroKernels<V, AcrossPanels<V>>::kOf[(least<V>(block.keys - i, V::kMR) - 1) * V::kVectors + vectors -
                                            1](block.queries - first, rows,
                                               columns + d * block.queries + first * kNR,
                                               to + i * row_stride + d, row_stride, true);
    }
  }
}

/// Computes a prepared block of queries against a block of keys.
template <class V>
void add_gradient(const Attention& g, const AttentionGradientPart& part, const GradientHead& head,
                  const ScorePanel& block, const GradientScratch<V>& scratch) {
  using Shape = AttentionShape<V>;
  constexpr int64_t kNR = Shape::kNR;
  const int64_t panel_floats = scratch.block_keys * kNR;
  pack_rows<V, V::kMR>(head.key, block.key, block.keys, g.width, scratch.key_rows);
  pack_rows<V, V::kMR>(head.value, block.key, block.keys, g.width, scratch.value_rows);
  if (part.of_queries) pack_columns<V, V::kMR>(head.key, block.key, block.keys, g.width, scratch.key_columns);
  for (int64_t j = 0; j < block.queries; j += kNR) {
    const int64_t here = least<V>(kNR, block.queries - j);
    // These are whole micro-tiles of keys, because add_over_queries() reads whole ones.
    const int64_t seen =
        g.causal ? least<V>(block.keys, Shape::up(block.query + j + here - block.key, V::kMR)) : block.keys;
    if (seen <= 0) continue;
    const ScorePanel panel = {block.query + j, here, block.key, seen, (here + V::kLanes - 1) / V::kLanes};
    float* const weights = scratch.weights + j / kNR * panel_floats;
    float* const grads = scratch.grad_scores + j / kNR * panel_floats;
    score_panel<V>(g, head.mask, panel, scratch.key_rows, scratch.query_rows + j * g.width, scratch.mask,
                   weights);
    for (int64_t i = 0; i < seen; i += V::kMR)
      MicroKernels<V>::kOf[(least<V>(seen - i, V::kMR) - 1) * V::kVectors + panel.vectors - 1](
          g.width, scratch.value_rows + i * g.width, scratch.grad_out_rows + j * g.width, grads + i * kNR,
          kNR, false);
    weigh_gradient<V>(panel, scratch.logsumexp + j, scratch.offsets + j, weights, grads);
    for (int64_t d = 0; part.of_queries && d < g.width; d += V::kMR)
      MicroKernels<V>::kOf[(least<V>(g.width - d, V::kMR) - 1) * V::kVectors + panel.vectors - 1](
          seen, scratch.key_columns + d * block.keys, grads, scratch.grad_queries + j * g.width + d * kNR,
          kNR, block.key > 0);
  }
  if (!part.of_keys) return;
  const int64_t sums = (block.key - part.key_begin) * scratch.row_stride;
  add_over_queries<V>(g, block, scratch.weights, panel_floats, scratch.grad_out_columns,
                      scratch.grad_values + sums, scratch.row_stride);
  add_over_queries<V>(g, block, scratch.grad_scores, panel_floats, scratch.query_columns,
                      scratch.grad_keys + sums, scratch.row_stride);
}

template <class V>
void attention_gradient_blocked(const AttentionGradient& gradient, const AttentionGradientPart& part,
                                float* memory) {
  using Shape = AttentionShape<V>;
  const Attention& g = gradient.attention;
  const int64_t part_keys = part.key_end - part.key_begin;
  const GradientScratch<V> scratch(g, part.of_keys ? part_keys : 0, memory);
  for (int64_t i = 0; i < Shape::kNR; ++i) scratch.scale[i] = g.scale;
  for (int64_t i = 0; part.of_keys && i < part_keys * scratch.row_stride; ++i)
    scratch.grad_keys[i] = scratch.grad_values[i] = 0;

  for (int64_t h = part.head_begin; h < part.head_end; ++h) {
    const GradientHead head = {
        of_head<V>(g.query, part.batch, h),
        of_head<V>(g.key, part.batch, part.kv_head),
        of_head<V>(g.value, part.batch, part.kv_head),
        g.mask.data ? of_head<V>(g.mask, part.batch, h) : ConstMatrix{},
        of_head<V>(gradient.out, part.batch, h),
        of_head<V>(gradient.grad_out, part.batch, h),
        g.logsumexp.data + part.batch * g.logsumexp.batch_stride + h * g.logsumexp.head_stride};
    for (int64_t query = part.query_begin; query < part.query_end; query += scratch.block_queries) {
      const int64_t queries = least<V>(scratch.block_queries, part.query_end - query);
      const int64_t end = g.causal ? least<V>(part.key_end, query + queries) : part.key_end;
      if (end <= part.key_begin) continue;
      prepare_queries<V>(g, head, query, queries, scratch);
      for (int64_t key = part.key_begin; key < end; key += scratch.block_keys)
        add_gradient<V>(g, part, head,
                        {query, queries, key, least<V>(scratch.block_keys, end - key), V::kVectors}, scratch);
      for (int64_t j = 0; part.of_queries && j < queries; j += Shape::kNR)
        store_turned<V>(scratch.grad_queries + j * g.width, scratch.scale, least<V>(Shape::kNR, queries - j),
                        g.width, of_head<V>(gradient.grad_query, part.batch, h), query + j);
    }
  }
  if (!part.of_keys) return;
  store_rows<V>(scratch.grad_keys, scratch.row_stride, part_keys, g.width,
                of_head<V>(gradient.grad_key, part.batch, part.kv_head), part.key_begin);
  store_rows<V>(scratch.grad_values, scratch.row_stride, part_keys, g.width,
                of_head<V>(gradient.grad_value, part.batch, part.kv_head), part.key_begin);
}

}  // namespace mantissa::kernels::cpu
