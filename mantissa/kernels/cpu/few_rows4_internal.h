#pragma once

// A few rows times the transpose of a 4-bit weight, for all vector tiers. The time goes into decoding, so that
// each tier decodes a group of codes in the order that costs it least, and the rows are arranged in that order.
// This header follows the rules of quantized4_internal.h. D, a tier's decoder, has these members:
//
//   kGroup                  the number of codes of a group: 64 or 128
//   D(values, shift)        makes the tables; a block has 2^shift values
//   place(i)                the place in a group of the value that is the group's i-th in the decoder's order
//   scales(absmax)          the scales of the lanes of a group
//   add<kRows>(codes, x, step, sums)  adds the products of a group's values, without their scales, with the
//                           arranged rows at x, x + step, ...
//   last_scales(absmax, left), add_last<kRows>(codes, left, x, step, sums)   the same for the last group of a
//                           row, which has `left` values
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
        const bool is_plain = p.a.col_stride == 1 && group + D::kGroup <= k;
        for (int64_t i = 0; i < D::kGroup; i += V::kLanes) {
          const int64_t left = k - group - i;
          const auto* const some = from + (group + i) * p.a.col_stride;
          V::store(values + i,
                   is_plain    ? Source::load(some)
                   : left <= 0 ? V::zero()
                               : Source::gather(some, p.a.col_stride, left < V::kLanes ? left : V::kLanes));
        }
        float* const out = to + row * padded + group;
        // A loop would compute the places, which takes four times as long as the copies.
#pragma GCC unroll 128
        for (int64_t i = 0; i < D::kGroup; ++i) out[i] = values[D::place(i)];
      }
    }
  });
}

/// Codes are loaded this many bytes ahead into the L1 cache. The CPU's own prefetching leaves waits of 5 to 11 % of the time
/// of a weight of 4096 x 4096.
constexpr int64_t kPrefetchedBytes = 1024;

/// Computes the products of one row of the weight, whose codes and scales are given, with kRows rows.
template <class V, class D, int kRows>
[[gnu::always_inline]] inline void multiply_line4(const D& decoder, const uint8_t* codes, const float* absmax,
                                                  int64_t cols, int shift, const float* x, int64_t step,
                                                  typename V::Float* totals) {
  typename V::Float sums[kRows];
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) totals[r] = V::zero();
  int64_t k = 0;
  for (; k + D::kGroup <= cols; k += D::kGroup) {
    __builtin_prefetch(codes + k / 2 + kPrefetchedBytes);
    decoder.template add<kRows>(codes + k / 2, x + k, step, sums);
    const auto scale = decoder.scales(absmax + (k >> shift));
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) totals[r] = V::fma(sums[r], scale, totals[r]);
  }
  if (k == cols) return;
  decoder.template add_last<kRows>(codes + k / 2, cols - k, x + k, step, sums);
  const auto scale = decoder.last_scales(absmax + (k >> shift), cols - k);
#pragma GCC unroll 3
  for (int r = 0; r < kRows; ++r) totals[r] = V::fma(sums[r], scale, totals[r]);
}

/// Computes the products of rows [line, line + lines) of the weight with kRows rows, at to[row * kStrip4].
template <class V, class D, int kRows>
void multiply_strip4(const D& given, const Weight4& w, int64_t line, int64_t lines, const float* x,
                     int64_t step, float* to) {
  // These are copies, because the compiler must assume that storing a result changes what is not its own.
  const D decoder = given;
  const int64_t cols = w.cols;
  // A division for each group would take as long as its products.
  const int shift = __builtin_ctzll(static_cast<uint64_t>(w.block));
  const uint8_t* codes = w.codes + line * cols / 2;
  const float* absmax = w.absmax + (line * cols >> shift);
  for (int64_t i = 0; i < lines; ++i, codes += cols / 2, absmax += cols >> shift) {
    typename V::Float totals[kRows];
    multiply_line4<V, D, kRows>(decoder, codes, absmax, cols, shift, x, step, totals);
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) to[r * kStrip4 + i] = D::sum(totals[r]);
  }
}

template <class V, class D>
void few_rows4_with(const Product4& p, const Gemm& g, const float* arranged, int64_t begin, int64_t end,
                    float* sums) {
  using Multiply = void(const D&, const Weight4&, int64_t, int64_t, const float*, int64_t, float*);
  static constexpr Multiply* kOf[] = {&multiply_strip4<V, D, 1>, &multiply_strip4<V, D, 2>,
                                      &multiply_strip4<V, D, 3>};
  static_assert(sizeof kOf / sizeof *kOf == kFewRows4);
  const D decoder(p.weight.code == Code4::kNF4 ? kNF4Values : kFP4Values,
                  __builtin_ctzll(static_cast<uint64_t>(p.weight.block)));
  const int64_t step = arranged_floats4<V>(p) / p.m;
  for (int64_t col = begin; col < end; col += kStrip4) {
    const int64_t cols = end - col < kStrip4 ? end - col : kStrip4;
    kOf[p.m - 1](decoder, p.weight, col, cols, arranged, step, sums);
    for (int64_t row = 0; row < p.m; ++row)
      finish_tile<V>(g, {0, row, col, 1, cols}, sums + row * kStrip4, 0);
  }
}

}  // namespace mantissa::kernels::cpu
