#pragma once

// Attention, for any device; on the terms of element.h.

#include <cstdint>

#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels {

/// Matrices for each head of each of a batch.
template <typename Pointer>
struct HeadsOf : MatrixOf<Pointer> {
  int64_t head_stride = 0;
};
using ConstHeads = HeadsOf<const void*>;
using Heads = HeadsOf<void*>;

/// out = softmax(scale * query key^T + mask) value, for each of `heads` heads of each of a batch.
///
/// Shapes:   query and out [queries, width], key and value [keys, width], mask [queries, keys]; every size is at least
///           1. Head h of the queries reads head h / (heads / kv_heads) of keys and values. logsumexp is float32 and
///           [queries]: its col_stride is not read.
/// Numerics: scale * query, scores, weights and sums are float32; cpu/attention_kernel.h has the order of the CPU's
///           sums. Weights are not rounded. The result is rounded once, to nearest even, NaN kept; denormals are kept,
///           but weights below 2^-126 of their row's largest are 0.
///           A row that sees no key (mask -inf, or causal) is 0 and so is its logsumexp. A score that is NaN or +inf
///           makes its row NaN. A value that is NaN or Inf reaches every row that sees its key, and may reach rows
///           from which the causal mask hides it.
/// Bound:    |out - exact| <= E + u (|exact| + E), u as for Gemm, E = sum of weight |value| (2 d + (keys + 16) 2^-24),
///           where d, the error of a score, is at most (width + 8) 2^-24 sum |scale query key| + 2^-22 (|score| +
///           |mask|), the largest of the row.
struct Attention {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, width = 0;
  ConstHeads query, key, value;
  ConstHeads mask;  ///< none if data is nullptr
  Heads out;
  HeadsOf<float*> logsumexp;
  float scale = 1;
  bool causal = false;  ///< query i sees the keys up to i
};

/// The gradients of `attention`, given that of its result.
///
/// Shapes:   grad_out, out and grad_query as query; grad_key and grad_value as key.
/// Numerics: the weights are computed again from logsumexp. With the weights P, the result O as it was rounded, and
///           everything else in float32: dV = P^T dO, dP = dO V^T, dS = P * (dP - row sums of dO * O),
///           dQ = scale * dS K, dK = dS^T (scale * Q). One rounding.
/// Bound:    that of each product, with the errors of its operands to the first order: the weights' error is twice
///           that of Attention, that of the row sums is one rounding of O. The tests compute it.
struct AttentionGradient {
  Attention attention;  ///< its `out` is not used
  ConstHeads out, grad_out;
  Heads grad_query, grad_key, grad_value;
};

}  // namespace mantissa::kernels
