#pragma once

// A few rows times the transpose of a 4-bit weight, for all vector tiers. The time goes into decoding, so that
// each tier decodes a group of codes in the order that costs it least, and the rows are arranged in that order.
// This header follows the rules of quantized4_internal.h. D, a tier's decoder, has these members:
//
//   kGroup                  the number of codes of a group: 64 or 128
//   D(values)               makes the tables
//   place(i)                the place in a group of the value that is the group's i-th in the decoder's order
//   scales(absmax, shift, left)  the scales of the lanes, if `left` values are left in the row and a block has
//                           2^shift values
//   add<kRows>(codes, left, x, step, sums)  adds the products of a group's values, without their scales, with
//                           the arranged rows at x, x + step, ...
//   sum(x)                  the sum of the lanes

#include <cstdint>

#include "mantissa/kernels/cpu/gemm_blocked_internal.h"
#include "mantissa/kernels/cpu/quantized4_kernel.h"

namespace mantissa::kernels::cpu {

template <class V, class D>
void arrange_rows4_with(const Product4& p, float* to) {
  const int64_t k = p.weight.cols, padded = arranged_floats4<V>(p) / p.m;
  with_elements<V>(p.a.element, p.a.element, [&](auto source) {
    using Source = decltype(source);
    for (int64_t row = 0; row < p.m; ++row) {
      const auto* const from = static_cast<const typename Source::Storage*>(p.a.data) + row * p.a.row_stride;
      for (int64_t group = 0; group < padded; group += D::kGroup) {
        alignas(64) float values[D::kGroup];
        for (int64_t i = 0; i < D::kGroup; i += V::kLanes) {
          const int64_t left = k - group - i;
          V::store(values + i, left <= 0 ? V::zero()
                                         : Source::gather(from + (group + i) * p.a.col_stride, p.a.col_stride,
                                                          left < V::kLanes ? left : V::kLanes));
        }
        float* const out = to + row * padded + group;
        for (int64_t i = 0; i < D::kGroup; ++i) out[i] = values[D::place(i)];
      }
    }
  });
}

/// Computes the products of one row of the weight with kRows rows, at to[row * kStrip4].
template <class V, class D, int kRows>
void multiply_line4(const D& decoder, const Weight4& w, int64_t line, const float* x, int64_t step,
                    float* to) {
  const uint8_t* codes = w.codes + line * w.cols / 2;
  // A division for each group would take as long as its products.
  const int shift = __builtin_ctzll(static_cast<uint64_t>(w.block));
  const float* const absmax = w.absmax + (line * w.cols >> shift);
  typename V::Float totals[kRows];
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) totals[r] = V::zero();
  for (int64_t k = 0; k < w.cols; k += D::kGroup) {
    typename V::Float sums[kRows];
    decoder.template add<kRows>(codes + k / 2, w.cols - k, x + k, step, sums);
    const auto scale = D::scales(absmax + (k >> shift), shift, w.cols - k);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) totals[r] = V::fma(sums[r], scale, totals[r]);
  }
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) to[r * kStrip4] = D::sum(totals[r]);
}

template <class V, class D>
void few_rows4_with(const Product4& p, const Gemm& g, const float* arranged, int64_t begin, int64_t end,
                    float* sums) {
  using Multiply = void(const D&, const Weight4&, int64_t, const float*, int64_t, float*);
  static constexpr Multiply* kOf[] = {&multiply_line4<V, D, 1>, &multiply_line4<V, D, 2>,
                                      &multiply_line4<V, D, 3>};
  static_assert(sizeof kOf / sizeof *kOf == kFewRows4);
  const D decoder(p.weight.code == Code4::kNF4 ? kNF4Values : kFP4Values);
  const int64_t step = arranged_floats4<V>(p) / p.m;
  for (int64_t col = begin; col < end; col += kStrip4) {
    const int64_t cols = end - col < kStrip4 ? end - col : kStrip4;
    for (int64_t j = 0; j < cols; ++j) kOf[p.m - 1](decoder, p.weight, col + j, arranged, step, sums + j);
    for (int64_t row = 0; row < p.m; ++row)
      finish_tile<V>(g, {0, row, col, 1, cols}, sums + row * kStrip4, 0);
  }
}

}  // namespace mantissa::kernels::cpu
