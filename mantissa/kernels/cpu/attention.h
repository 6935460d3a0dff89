#pragma once

// What a tier's attention kernels take; seen by every tier, on the terms of gemm.h.

#include <cstdint>

#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa::cpu {

/// Matrices for each head of each of a batch.
template <typename Pointer>
struct HeadsOf : MatrixOf<Pointer> {
  int64_t head_stride = 0;
};
using ConstHeads = HeadsOf<const void*>;
using Heads = HeadsOf<void*>;

/// out = softmax(scale * query key^T + mask) value, for each of `heads` heads of each of a batch.
///
/// Shapes:   query and out [queries, width], key and value [keys, width], mask [queries, keys]; all at least
///           1. Head h of the queries reads head h / (heads / kv_heads) of keys and values. logsumexp is
///           float32 and [queries]: its col_stride is not read.
/// Numerics: scale * query, scores, weights and sums are float32, the sums chains of fused multiply-adds in
///           the order of width and of the keys, in blocks of keys whose sums are added in order; with up to
///           six queries each vector lane has chains of its own. Weights are not rounded. One rounding of the
///           result, to nearest even, NaN kept; denormals are kept, but weights below 2^-126 of their row's
///           largest are 0.
///           A row that sees no key (mask -inf, or causal) is 0 and so is its logsumexp. A score that is NaN
///           or +inf makes its row NaN. A value that is NaN or Inf reaches every row that sees its key, and
///           may reach rows from which the causal mask hides it.
/// Bound:    |out - exact| <= E + u (|exact| + E), u as for Gemm, E = sum of weight |value| (2 d + (keys +
///           16) 2^-24), where d, the error of a score, is at most (width + 8) 2^-24 sum |scale query key| +
///           2^-22 (|score| + |mask|), the largest of the row.
struct Attention {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, width = 0;
  ConstHeads query, key, value;
  ConstHeads mask;  ///< none if data is nullptr
  Heads out;
  HeadsOf<float*> logsumexp;
  float scale = 1;
  bool causal = false;  ///< query i sees the keys up to i
};

/// The queries of one head that a call computes. Their first is a multiple of the build's panel.
struct AttentionPart {
  int64_t batch, head, query_begin, query_end;
};

/// The gradients of `attention` for that of its result.
///
/// Shapes:   grad_out, out and grad_query as query; grad_key and grad_value as key.
/// Numerics: weights are computed again from logsumexp. With P the weights, O the result as it was rounded
///           and everything else in float32: dV = P^T dO, dP = dO V^T, dS = P * (dP - row sums of dO * O),
///           dQ = scale * dS K, dK = dS^T (scale * Q); chains of fused multiply-adds over blocks of keys or
///           queries, which are added in order, heads that share a key one after the other. One rounding.
/// Bound:    that of each product, with the errors of its operands to the first order: the weights' is twice
///           that of Attention, that of the row sums one rounding of O. The tests compute it.
struct AttentionGradient {
  Attention attention;  ///< its `out` is not used
  ConstHeads out, grad_out;
  Heads grad_query, grad_key, grad_value;
};

/// What a call computes: from the queries of heads [head_begin, head_end), which read keys and values of
/// kv_head, and these keys, the gradient of the queries, for which the keys must be all, or of keys and
/// values, for which heads and queries must be all, or both. The first query is a multiple of the panel.
struct AttentionGradientPart {
  int64_t batch, kv_head, head_begin, head_end, query_begin, query_end, key_begin, key_end;
  bool of_queries, of_keys;
};

/// Blocks that stay in the caches, in floats: of keys, and as many of values; of queries and their sums. Then
/// what a block has at most of keys and queries. The gradient has more to keep of smaller blocks.
constexpr int64_t kAttentionKeyFloats = 24576, kAttentionQueryFloats = 32768, kAttentionKeys = 384,
                  kAttentionQueries = 1024;
constexpr int64_t kGradientKeyFloats = 8192, kGradientQueryFloats = 8192, kGradientKeys = 120,
                  kGradientQueries = 128;

using AttentionKernel = void(const Attention&, const AttentionPart&, float* scratch);
using AttentionGradientKernel = void(const AttentionGradient&, const AttentionGradientPart&, float* scratch);
/// How many floats of scratch, 64-byte aligned, a call needs; of the gradient one that computes that of
/// `keys` keys.
using AttentionScratchSize = int64_t(const Attention&);
using AttentionGradientScratchSize = int64_t(const Attention&, int64_t keys);

namespace generic {
AttentionKernel attention;
AttentionScratchSize attention_scratch_size;
AttentionGradientKernel attention_gradient;
AttentionGradientScratchSize attention_gradient_scratch_size;
}  // namespace generic
namespace avx2 {
AttentionKernel attention;
AttentionScratchSize attention_scratch_size;
AttentionGradientKernel attention_gradient;
AttentionGradientScratchSize attention_gradient_scratch_size;
}  // namespace avx2
namespace avx512 {
AttentionKernel attention;
AttentionScratchSize attention_scratch_size;
AttentionGradientKernel attention_gradient;
AttentionGradientScratchSize attention_gradient_scratch_size;
}  // namespace avx512

}  // namespace mantissa::cpu
