#pragma once

// Attention, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels {

/// The matrices of every head of every batch item.
template <typename Pointer>
struct HeadsOf : MatrixOf<Pointer> {
  int64_t head_stride = 0;
};
using ConstHeads = HeadsOf<const void*>;
using Heads = HeadsOf<void*>;

/// Computes out = softmax(scale * query key^T + mask) value for each of `heads` heads of each batch item.
///
/// Shapes:   query and out are [queries, width], key and value [keys, width], mask [queries, keys]; every
///           size is at least 1. Query head h reads head h / (heads / kv_heads) of keys and values. logsumexp
///           is float32 and [queries]; its col_stride is not read.
/// Numerics: scale * query, scores, weights and sums are float32; cpu/attention_kernel.h defines the order of
///           the sums on the CPU. Weights are not rounded. The result is rounded once, to nearest even, and
///           NaN is kept. Denormals are kept, but weights below 2^-126 of their row's largest weight are 0. A
///           row that sees no key (because of a mask of -inf or the causal mask) is 0, and so is its
///           logsumexp. A score that is NaN or +inf makes its row NaN. A value that is NaN or Inf reaches
///           every row that sees its key, and may reach rows from which the causal mask hides it.
/// Bound:    |out - exact| <= E + u (|exact| + E), with u as for Gemm and E = sum of weight |value| (2 d +
///           (keys + 16) 2^-24). Here d is the largest error of a score in the row, at most (width + 8) 2^-24
///           sum |scale query key| + 2^-22 (|score| + |mask|).
struct Attention {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, width = 0;
  ConstHeads query, key, value;
  ConstHeads mask;  ///< none if data is nullptr
  Heads out;
  HeadsOf<float*> logsumexp;
  float scale = 1;
  bool causal = false;  ///< query i sees the keys up to i
};

/// Computes the gradients of `attention` from the gradient of its result.
///
/// Shapes:   grad_out, out and grad_query have the shape of query; grad_key and grad_value that of key.
/// Numerics: the weights P are recomputed from logsumexp. O is the rounded result; everything else is
///           float32: dV = P^T dO, dP = dO V^T, dS = P * (dP - row sums of dO * O), dQ = scale * dS K, dK =
///           dS^T (scale * Q). Each gradient is rounded once.
/// Bound:    the bound of each product, with the errors of its operands to first order. The error of the
///           weights is twice that of Attention, and the error of the row sums is one rounding of O. The
///           tests compute this bound.
struct AttentionGradient {
  Attention attention;  ///< its `out` is not used
  ConstHeads out, grad_out;
  Heads grad_query, grad_key, grad_value;
};

}  // namespace mantissa::kernels
