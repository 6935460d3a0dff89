#pragma once

// Products whose inner dimension k is at most 3, for all vector tiers. An example is the gradient of the input
// of a layer with one output. This header follows the rules of gemm_blocked_internal.h. Rounding the results
// is most of the work, so the sums stay in registers until they are rounded.

#include <cstdint>

#include "mantissa/kernels/cpu/gemm_blocked_internal.h"

namespace mantissa::kernels::cpu {

/// True if gemm_shallow() takes `g`.
template <class V>
bool is_shallow(const Gemm& g) {
  return g.k <= 3 && g.terms == 1 && g.out.col_stride == 1 && g.n >= 2 * V::kLanes;
}

/// Sets to[k * count + i] to element (i, k) of an operand, in float32, for `depth` steps of k. Elements are
/// `stride` apart along i and `k_stride` along k. May write up to one vector past the end.
template <class V>
void widen_steps(const ConstMatrix& matrix, Element other, int64_t first, int64_t stride, int64_t k_stride,
                 int64_t count, int64_t depth, float* to) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t i = 0; i < count; i += V::kLanes)
      V::store(to + k * count + i,
               load_from<V>(matrix, other, first + k * k_stride + i * stride, stride, count - i));
}

/// Element (i, k) of a is data[i * row_stride + k * k_stride].
struct ShallowRows {
  const float* data;
  int64_t row_stride, k_stride;
};

/// Computes a tile of the result: the sums over k of a(i, k) * b[k * tile.cols + j], rounded. `sums` is scratch
/// memory for one row of the tile, in whole vectors.
template <class V, class Out, int kDepth>
void multiply_shallow(const Gemm& g, const Tile& tile, const ShallowRows& a, const float* b, float* sums) {
  constexpr int64_t kPair = 2 * V::kLanes;
  const bool plain = g.addend.data == nullptr && g.activation == Activation::kNone && has_plain_sums<V>(g);
  const int64_t cols = tile.cols, pairs = plain ? cols / kPair * kPair : 0, out_stride = g.out.row_stride;
  auto* out = static_cast<typename Out::Storage*>(g.out.data) + tile.batch * g.out.batch_stride +
              tile.row * out_stride + tile.col;
  for (int64_t i = 0; i < tile.rows; ++i, out += out_stride) {
    typename V::Float by[kDepth];
#pragma GCC unroll 4
    for (int k = 0; k < kDepth; ++k) by[k] = V::broadcast(a.data + i * a.row_stride + k * a.k_stride);
    const auto sum_at = [&](int64_t j) __attribute__((always_inline)) {
      auto sum = V::zero();
#pragma GCC unroll 4
      for (int k = 0; k < kDepth; ++k) sum = V::fma(by[k], V::load(b + k * cols + j), sum);
      return sum;
    };
    for (int64_t j = 0; j < pairs; j += kPair) Out::store_pair(out + j, sum_at(j), sum_at(j + V::kLanes));
    if (pairs == cols) continue;
    for (int64_t j = pairs; j < cols; j += V::kLanes) V::store(sums + j, sum_at(j));
    finish_tile_as<V, Out>(g, {tile.batch, tile.row + i, tile.col + pairs, 1, cols - pairs}, sums + pairs, 0);
  }
}

/// Computes `part` of a product that is_shallow().
template <class V>
void gemm_shallow(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  for (int64_t col = part.col_begin; col < part.col_end; col += kGemmNC) {
    const int64_t cols = least<V>(kGemmNC, part.col_end - col);
    widen_steps<V>(g.b, g.a.element, part.batch * g.b.batch_stride + col * g.b.col_stride, g.b.col_stride,
                   g.b.row_stride, cols, g.k, scratch.b);
    for (int64_t row = part.row_begin; row < part.row_end; row += kGemmMC) {
      const int64_t rows = least<V>(kGemmMC, part.row_end - row);
      const int64_t first = part.batch * g.a.batch_stride + row * g.a.row_stride;
      const bool adjacent = g.a.col_stride == 1 && g.a.row_stride == g.k;
      if (adjacent)
        widen_steps<V>(g.a, g.b.element, first, 1, 0, rows * g.k, 1, scratch.a);
      else
        widen_steps<V>(g.a, g.b.element, first, g.a.row_stride, g.a.col_stride, rows, g.k, scratch.a);
      const ShallowRows a{scratch.a, adjacent ? g.k : 1, adjacent ? 1 : rows};
      with_elements<V>(g.out.element, g.round_to, [&](auto out) {
        using Out = decltype(out);
        constexpr decltype(&multiply_shallow<V, Out, 1>) kOfDepth[] = {
            &multiply_shallow<V, Out, 1>, &multiply_shallow<V, Out, 2>, &multiply_shallow<V, Out, 3>};
        kOfDepth[g.k - 1](g, {part.batch, row, col, rows, cols}, a, scratch.b, scratch.sums);
      });
    }
  }
}

}  // namespace mantissa::kernels::cpu
