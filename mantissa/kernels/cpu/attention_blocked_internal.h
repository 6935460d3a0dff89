#pragma once

// Attention, written once for all vector tiers. This header follows the rules of gemm_blocked_internal.h and
// math_internal.h.
//
// Everything is computed transposed, one panel of NR queries at a time. Scores are keys x queries, so one
// lane is one query, and its largest score, sum and mask need no work across lanes. The micro-tile of scores,
// as it is stored, is the right operand of the next product.

#include <cfloat>

#include "mantissa/kernels/cpu/attention_kernel.h"
#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/math_internal.h"

namespace mantissa::kernels::cpu {

/// Block sizes of the forward and the backward pass.
template <class V>
struct AttentionShape {
  static constexpr int64_t kNR = V::kVectors * V::kLanes;  ///< the queries of a panel

  /// Returns the number of keys in a block. It is a multiple of every tier's MR, so that all tiers have the
  /// same blocks.
  static int64_t keys(const Attention& g, int64_t floats, int64_t most) {
    constexpr int64_t kMultiple = 12;
    static_assert(kMultiple % V::kMR == 0);
    return fit(floats / g.width / kMultiple * kMultiple, kMultiple, most, up(g.keys, V::kMR));
  }

  /// Returns the number of queries in a block, in whole panels.
  static int64_t queries(const Attention& g, int64_t floats, int64_t most) {
    return fit(floats / g.width / kNR * kNR, kNR, most, up(g.queries, kNR));
  }

  static int64_t fit(int64_t wanted, int64_t fewest, int64_t most, int64_t all) {
    return least<V>(wanted < fewest ? fewest : least<V>(wanted, most), all);
  }

  static int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

  /// Takes the next part of the scratch, of which `used` floats are taken: whole cache lines, with room for
  /// what packing writes past a panel's end. Without memory it only counts.
  static float* take(float* memory, int64_t& used, int64_t floats) {
    float* const taken = memory == nullptr ? nullptr : memory + used;
    used += up(floats + kGemmSlack, 16);
    return taken;
  }
};

/// Returns the matrix of a head.
template <class V>
ConstMatrix of_head(const ConstHeads& heads, int64_t batch, int64_t head) {
  ConstMatrix matrix = heads;
  matrix.data = element_at<V>(heads, batch * heads.batch_stride + head * heads.head_stride);
  return matrix;
}

/// Returns the matrix of a head of 16-bit results.
template <class V>
Matrix of_head(const Heads& heads, int64_t batch, int64_t head) {
  Matrix matrix = heads;
  matrix.data = static_cast<uint16_t*>(heads.data) + batch * heads.batch_stride + head * heads.head_stride;
  return matrix;
}

/// Packs rows [row, row + rows) of `x` as lanes, with its `width` columns as the depth: see pack().
template <class V, int kWidth>
void pack_rows(const ConstMatrix& x, int64_t row, int64_t rows, int64_t width, float* to) {
  pack<V, kWidth>(x.element, x.element,
                  {element_at<V>(x, row * x.row_stride), x.row_stride, x.col_stride, rows}, rows, width, to);
}

/// Packs the `width` columns of `x` as lanes, with rows [row, row + rows) as the depth.
template <class V, int kWidth>
void pack_columns(const ConstMatrix& x, int64_t row, int64_t rows, int64_t width, float* to) {
  pack<V, kWidth>(x.element, x.element,
                  {element_at<V>(x, row * x.row_stride), x.col_stride, x.row_stride, width}, width, rows, to);
}

/// Multiplies whole vectors in place.
template <class V>
void multiply_all(float* values, int64_t count, float factor) {
  const auto factors = V::set(factor);
  for (int64_t i = 0; i < count; i += V::kLanes) V::store(values + i, V::mul(V::load(values + i), factors));
}

/// -inf for the first lanes that a load takes, and inf for the others.
template <class V>
struct Hiding {
  float values[2 * AttentionShape<V>::kNR];
  constexpr Hiding() : values() {
    for (int i = 0; i < 2 * AttentionShape<V>::kNR; ++i)
      values[i] = i < AttentionShape<V>::kNR ? -__builtin_inff() : __builtin_inff();
  }
};

/// A panel of queries and a block of keys.
struct ScorePanel {
  int64_t query, queries;  ///< the first query, and how many there are
  int64_t key, keys;       ///< likewise, without the keys that the causal mask hides from all of the queries
  int64_t vectors;         ///< the vectors that the queries fill
};

/// Computes scores[key * kNR + query] = scale * query key^T + mask for `panel`. `keys` and `queries` are
/// packed, and the queries are multiplied by the scale. `mask_panel` has room for a panel's scores.
template <class V>
void score_panel(const Attention& g, const ConstMatrix& mask, const ScorePanel& panel, const float* keys,
                 const float* queries, float* mask_panel, float* scores) {
  constexpr int64_t kNR = AttentionShape<V>::kNR;
  static constexpr Hiding<V> kHiding;
  for (int64_t i = 0; i < panel.keys; i += V::kMR) {
    const int64_t rows = least<V>(panel.keys - i, V::kMR);
    MicroKernels<V>::kOf[(rows - 1) * V::kVectors + panel.vectors - 1](g.width, keys + i * g.width, queries,
                                                                       scores + i * kNR, kNR, false);
  }
  if (mask.data != nullptr) {
    pack<V, kNR>(mask.element, mask.element,
                 {element_at<V>(mask, panel.query * mask.row_stride + panel.key * mask.col_stride),
                  mask.row_stride, mask.col_stride, panel.queries},
                 panel.queries, panel.keys, mask_panel);
    for (int64_t i = 0; i < panel.keys * kNR; i += kNR)
      for (int64_t j = i; j < i + panel.vectors * V::kLanes; j += V::kLanes)
        V::store(scores + j, V::add(V::load(scores + j), V::load(mask_panel + j)));
  }
  if (!g.causal) return;
  for (int64_t i = panel.query >= panel.key ? panel.query - panel.key + 1 : 0; i < panel.keys; ++i) {
    const int64_t hidden = least<V>(panel.key + i - panel.query, kNR);
    for (int64_t j = 0; j < panel.vectors * V::kLanes; j += V::kLanes) {
      float* const at = scores + i * kNR + j;
      V::store(at, V::min(V::load(at), V::load(kHiding.values + kNR - hidden + j)));
    }
  }
}

/// For one vector of a panel's queries, turns scores into weights relative to the largest score so far, and
/// updates `largest` and `sum`. Returns the factor for earlier sums.
template <class V>
typename V::Float weigh(int64_t keys, float* scores, float* largest, float* sum) {
  using Float = typename V::Float;
  constexpr int64_t kNR = AttentionShape<V>::kNR;
  const Float before = V::load(largest);
  Float most[4] = {before, before, before, before};
  int64_t i = 0;
  for (; i + 4 <= keys; i += 4)
    for (int j = 0; j < 4; ++j) most[j] = V::max(V::load(scores + (i + j) * kNR), most[j]);
  for (; i < keys; ++i) most[0] = V::max(V::load(scores + i * kNR), most[0]);
  const Float now = V::max(V::max(most[0], most[1]), V::max(most[2], most[3]));
  Float added = V::zero();
  for (i = 0; i < keys; ++i) {
    const Float weight = exp<V>(V::sub(V::load(scores + i * kNR), now));
    V::store(scores + i * kNR, weight);
    added = V::add(added, weight);
  }
  const Float factor = exp<V>(V::sub(before, now));
  V::store(largest, now);
  V::store(sum, V::fma(V::load(sum), factor, added));
  return factor;
}

/// Computes to[query][column] = factor[query] * from[column * kNR + query], rounded.
template <class V, class Out>
void store_turned(const float* from, const float* factor, int64_t queries, int64_t width,
                  typename Out::Storage* to, int64_t row_stride, int64_t col_stride) {
  using Float = typename V::Float;
  constexpr int64_t kNR = AttentionShape<V>::kNR;
  for (int64_t q = 0; q < queries; q += V::kLanes) {
    const Float factors = V::load(factor + q);
    for (int64_t d = 0; d < width; d += V::kLanes) {
      const int64_t cols = least<V>(width - d, V::kLanes), rows = least<V>(queries - q, V::kLanes);
      Float turned[V::kLanes];
      for (int64_t i = 0; i < V::kLanes; ++i)
        turned[i] = i < cols ? V::mul(factors, V::load(from + (d + i) * kNR + q)) : V::zero();
      V::transpose(turned);
      auto* const out = to + q * row_stride + d * col_stride;
      if (cols == V::kLanes && col_stride == 1) {
        for (int64_t i = 0; i < rows; ++i) Out::store(out + i * row_stride, turned[i]);
      } else {
        for (int64_t i = 0; i < rows; ++i) Out::scatter(out + i * row_stride, col_stride, cols, turned[i]);
      }
    }
  }
}

/// Does the same for rows [row, ...) of `to`, of either 16-bit type.
template <class V>
void store_turned(const float* from, const float* factor, int64_t queries, int64_t width, const Matrix& to,
                  int64_t row) {
  auto* const out = static_cast<uint16_t*>(to.data) + row * to.row_stride;
  if (to.element == Element::kBFloat16) {
    store_turned<V, Elements<V, Element::kBFloat16>>(from, factor, queries, width, out, to.row_stride,
                                                     to.col_stride);
  } else {
    store_turned<V, Elements<V, Element::kFloat16>>(from, factor, queries, width, out, to.row_stride,
                                                    to.col_stride);
  }
}

/// Writes rows of `from`, rounded, to rows [row, row + rows) of `to`.
template <class V, class Out>
void store_rows(const float* from, int64_t stride, int64_t rows, int64_t width, const Matrix& to,
                int64_t row) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < width; d += V::kLanes) {
      auto* const out =
          static_cast<typename Out::Storage*>(to.data) + (row + i) * to.row_stride + d * to.col_stride;
      const auto value = V::load(from + i * stride + d);
      if (width - d >= V::kLanes && to.col_stride == 1) {
        Out::store(out, value);
      } else {
        Out::scatter(out, to.col_stride, least<V>(width - d, V::kLanes), value);
      }
    }
}

template <class V>
void store_rows(const float* from, int64_t stride, int64_t rows, int64_t width, const Matrix& to,
                int64_t row) {
  if (to.element == Element::kBFloat16)
    return store_rows<V, Elements<V, Element::kBFloat16>>(from, stride, rows, width, to, row);
  store_rows<V, Elements<V, Element::kFloat16>>(from, stride, rows, width, to, row);
}

/// The scratch memory of attention_blocked().
template <class V>
struct AttentionScratch {
  using Shape = AttentionShape<V>;
  AttentionScratch(const Attention& g, float* memory)
      : block_keys(Shape::keys(g, kAttentionKeyFloats, kAttentionKeys)),
        block_queries(Shape::queries(g, kAttentionQueryFloats, kAttentionQueries)),
        keys(Shape::take(memory, size, block_keys * g.width)),
        values(Shape::take(memory, size, Shape::up(g.width, V::kMR) * block_keys)),
        queries(Shape::take(memory, size, block_queries * g.width)),
        outs(Shape::take(memory, size, block_queries * g.width)),
        largest(Shape::take(memory, size, block_queries)),
        sums(Shape::take(memory, size, block_queries)),
        scores(Shape::take(memory, size, block_keys * Shape::kNR)),
        mask(Shape::take(memory, size, g.mask.data ? block_keys * Shape::kNR : 0)) {}
  int64_t size = 0;
  int64_t block_keys, block_queries;
  float *keys, *values;   ///< micro-panels of MR: keys as lanes, columns as lanes
  float *queries, *outs;  ///< panels of queries; transposed sums
  float *largest, *sums;  ///< of each query
  float *scores, *mask;   ///< of one panel
};

template <class V>
int64_t attention_blocked_scratch_size(const Attention& g) {
  return AttentionScratch<V>(g, nullptr).size;
}

/// Computes the queries [query, query + queries), at most one block.
template <class V>
void attend_block(const Attention& g, int64_t batch, int64_t head, int64_t query, int64_t queries,
                  const AttentionScratch<V>& scratch) {
  using Shape = AttentionShape<V>;
  using Float = typename V::Float;
  constexpr int64_t kNR = Shape::kNR;
  const int64_t kv_head = head / (g.heads / g.kv_heads), padded = Shape::up(queries, kNR);
  const ConstMatrix key = of_head<V>(g.key, batch, kv_head), value = of_head<V>(g.value, batch, kv_head);
  const ConstMatrix mask = g.mask.data ? of_head<V>(g.mask, batch, head) : ConstMatrix{};
  pack_rows<V, kNR>(of_head<V>(g.query, batch, head), query, queries, g.width, scratch.queries);
  multiply_all<V>(scratch.queries, padded * g.width, g.scale);
  for (int64_t i = 0; i < padded; i += V::kLanes) {
    V::store(scratch.largest + i, V::set(-FLT_MAX));
    V::store(scratch.sums + i, V::zero());
  }

  const int64_t end = g.causal ? least<V>(g.keys, query + queries) : g.keys;
  for (int64_t k = 0; k < end; k += scratch.block_keys) {
    const int64_t keys = least<V>(scratch.block_keys, end - k);
    pack_rows<V, V::kMR>(key, k, keys, g.width, scratch.keys);
    pack_columns<V, V::kMR>(value, k, keys, g.width, scratch.values);
    for (int64_t j = 0; j < queries; j += kNR) {
      const int64_t here = least<V>(kNR, queries - j);
      const int64_t seen = g.causal ? least<V>(keys, query + j + here - k) : keys;
      if (seen <= 0) continue;
      const ScorePanel panel = {query + j, here, k, seen, (here + V::kLanes - 1) / V::kLanes};
      score_panel<V>(g, mask, panel, scratch.keys, scratch.queries + j * g.width, scratch.mask,
                     scratch.scores);
      float* const outs = scratch.outs + j * g.width;
      for (int64_t v = 0; v < panel.vectors * V::kLanes; v += V::kLanes) {
        const Float factor =
            weigh<V>(seen, scratch.scores + v, scratch.largest + j + v, scratch.sums + j + v);
        for (int64_t d = 0; k > 0 && d < g.width; ++d)
          V::store(outs + d * kNR + v, V::mul(V::load(outs + d * kNR + v), factor));
      }
      for (int64_t d = 0; d < g.width; d += V::kMR)
        MicroKernels<V>::kOf[(least<V>(g.width - d, V::kMR) - 1) * V::kVectors + panel.vectors - 1](
            seen, scratch.values + d * keys, scratch.scores, outs + d * kNR, kNR, k > 0);
    }
  }

  float* const logsumexp = g.logsumexp.data + batch * g.logsumexp.batch_stride +
                           head * g.logsumexp.head_stride + query * g.logsumexp.row_stride;
  for (int64_t i = 0; i < queries; ++i)
    logsumexp[i * g.logsumexp.row_stride] =
        scratch.sums[i] == 0 ? 0 : scratch.largest[i] + __builtin_logf(scratch.sums[i]);
  // A sum is at least 1, the weight of the largest score, or 0 if the query saw no key.
  for (int64_t i = 0; i < padded; i += V::kLanes)
    V::store(scratch.sums + i, V::div(V::set(1), V::max(V::set(1), V::load(scratch.sums + i))));
  const Matrix out = of_head<V>(g.out, batch, head);
  for (int64_t j = 0; j < queries; j += kNR)
    store_turned<V>(scratch.outs + j * g.width, scratch.sums + j, least<V>(kNR, queries - j), g.width, out,
                    query + j);
}

template <class V>
void attention_blocked(const Attention& g, const AttentionPart& part, float* memory) {
  const AttentionScratch<V> scratch(g, memory);
  for (int64_t query = part.query_begin; query < part.query_end; query += scratch.block_queries)
    attend_block<V>(g, part.batch, part.head, query, least<V>(scratch.block_queries, part.query_end - query),
                    scratch);
}

}  // namespace mantissa::kernels::cpu
