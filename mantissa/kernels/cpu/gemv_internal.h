#pragma once

// A few rows times a matrix, for all vector tiers. This header follows the rules of gemm_blocked_internal.h.
// Each element of the matrix is used so rarely that it is widened where it is used, and never packed.

#include <utility>

#include "mantissa/kernels/cpu/gemm_blocked_internal.h"

namespace mantissa::kernels::cpu {

/// The number of columns processed together: long enough to read rows at the speed of the memory. Their sums
/// take 8 KiB; GemmScratch holds them in place of MR rows.
constexpr int64_t kGemvNC = 2048;

/// add_rows() for so few columns that their sums stay in registers.
template <class V, class Source, int kVectors>
void add_narrow_rows(const float* a, const typename Source::Storage* from, int64_t k_stride, int64_t depth,
                     float* chains) {
  // Indexed by constants only: see micro_kernel().
  const auto run = [&]<int... kVector>(std::integer_sequence<int, kVector...>)
      __attribute__((always_inline)) {
    typename V::Float sums[] = {((void)kVector, V::zero())...};
    for (int64_t k = 0; k < depth; ++k, from += k_stride) {
      const auto by = V::broadcast(a + k);
      ((sums[kVector] = V::fma(by, Source::load(from + kVector * V::kLanes), sums[kVector])), ...);
    }
    (V::store(chains + kVector * V::kLanes, sums[kVector]), ...);
  };
  run(std::make_integer_sequence<int, kVectors>{});
}

/// Computes chains[j] = the sum over k of a[k] * from[k * k_stride + j]. The columns are adjacent, and there
/// are at least kLanes of them up to the last one here. The order of summation is that of Gemm.
template <class V, class Source>
void add_rows(const float* a, const typename Source::Storage* from, int64_t k_stride, int64_t depth,
              int64_t cols, float* chains) {
  constexpr int64_t kChunk = 4;   // rows for each time that the sums are loaded and stored
  constexpr int64_t kNarrow = 4;  // vectors
  const int64_t whole = cols / V::kLanes * V::kLanes;
  int64_t k = 0;
  if (0 < whole && whole <= kNarrow * V::kLanes) {
    using Narrow = void(const float*, const typename Source::Storage*, int64_t, int64_t, float*);
    static constexpr Narrow* kOf[] = {&add_narrow_rows<V, Source, 1>, &add_narrow_rows<V, Source, 2>,
                                      &add_narrow_rows<V, Source, 3>, &add_narrow_rows<V, Source, 4>};
    kOf[whole / V::kLanes - 1](a, from, k_stride, depth, chains);
    k = depth;
  } else {
    for (int64_t j = 0; j < whole; j += V::kLanes) V::store(chains + j, V::zero());
  }
  for (; k + kChunk <= depth; k += kChunk) {
    const auto* const row = from + k * k_stride;
    const auto a0 = V::broadcast(a + k), a1 = V::broadcast(a + k + 1), a2 = V::broadcast(a + k + 2),
               a3 = V::broadcast(a + k + 3);
    for (int64_t j = 0; j < whole; j += V::kLanes) {
      auto chain = V::fma(a0, Source::load(row + j), V::load(chains + j));
      chain = V::fma(a1, Source::load(row + k_stride + j), chain);
      chain = V::fma(a2, Source::load(row + 2 * k_stride + j), chain);
      chain = V::fma(a3, Source::load(row + 3 * k_stride + j), chain);
      V::store(chains + j, chain);
    }
  }
  for (; k < depth; ++k)
    for (int64_t j = 0; j < whole; j += V::kLanes)
      V::store(chains + j,
               V::fma(V::broadcast(a + k), Source::load(from + k * k_stride + j), V::load(chains + j)));
  if (whole == cols) return;
  // This vector ends with the last column, so nothing is read past the row's end.
  const auto* const last = from + cols - V::kLanes;
  auto chain = V::zero();
  for (k = 0; k < depth; ++k) chain = V::fma(V::broadcast(a + k), Source::load(last + k * k_stride), chain);
  alignas(64) float lanes[V::kLanes];
  V::store(lanes, chain);
  for (int64_t j = whole; j < cols; ++j) chains[j] = lanes[V::kLanes - cols + j];
}

/// Computes the lanes of the sums over k of a[k] * from[j * col_stride + k], for kCols columns. The elements
/// of k are adjacent.
template <class V, class Source, int kCols>
void multiply_columns(const float* a, const typename Source::Storage* from, int64_t col_stride, int64_t depth,
                      float* lanes) {
  typename V::Float even[kCols], odd[kCols];
#pragma GCC unroll 4
  for (int j = 0; j < kCols; ++j) even[j] = odd[j] = V::zero();
  int64_t k = 0;
  for (; k + 2 * V::kLanes <= depth; k += 2 * V::kLanes) {
    const auto first = V::load(a + k), second = V::load(a + k + V::kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < kCols; ++j) {
      even[j] = V::fma(first, Source::load(from + j * col_stride + k), even[j]);
      odd[j] = V::fma(second, Source::load(from + j * col_stride + k + V::kLanes), odd[j]);
    }
  }
  for (; k < depth; k += V::kLanes) {
    const auto row = V::load(a + k);  // 0 past its end
    for (int j = 0; j < kCols; ++j) {
      const auto* const column = from + j * col_stride + k;
      even[j] = V::fma(
          row, depth - k < V::kLanes ? Source::load_some(column, depth - k) : Source::load(column), even[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kCols; ++j) V::store(lanes + j * V::kLanes, V::add(even[j], odd[j]));
}

/// Computes chains[j] = the sum over k of a[k] * from[j * col_stride + k], for `cols` columns. May write a
/// vector past their end. Each lane has two chains of multiply-adds; then the lanes are added in order.
template <class V, class Source>
void add_columns(const float* a, const typename Source::Storage* from, int64_t col_stride, int64_t depth,
                 int64_t cols, float* chains) {
  constexpr int kChunk = 4;
  for (int64_t j = 0; j < cols; j += V::kLanes) {
    alignas(64) float lanes[V::kLanes * V::kLanes];
    const auto* const first = from + j * col_stride;
    const int64_t here = least<V>(V::kLanes, cols - j);
    int64_t i = 0;
    for (; i + kChunk <= here; i += kChunk)
      multiply_columns<V, Source, kChunk>(a, first + i * col_stride, col_stride, depth,
                                          lanes + i * V::kLanes);
    for (; i < here; ++i)
      multiply_columns<V, Source, 1>(a, first + i * col_stride, col_stride, depth, lanes + i * V::kLanes);
    typename V::Float columns[V::kLanes];
#pragma GCC unroll 16
    for (int64_t column = 0; column < V::kLanes; ++column)
      columns[column] = column < here ? V::load(lanes + column * V::kLanes) : V::zero();
    V::transpose(columns);
    auto sum = V::zero();
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < V::kLanes; ++lane) sum = V::add(sum, columns[lane]);
    V::store(chains + j, sum);
  }
}

/// True if gemv() takes `g`: multiplying up to three rows one by one is faster than packing b.
template <class V>
bool is_gemv(const Gemm& g) {
  return g.m <= 3 && (g.b.row_stride == 1 || (g.b.col_stride == 1 && g.n >= V::kLanes));
}

/// Computes sums[j] = the row's products with the columns [col, col + cols), at most kGemvNC columns.
template <class V>
void multiply_row(const Gemm& g, int64_t batch, int64_t row, int64_t col, int64_t cols, float* a_row,
                  float* sums) {
  alignas(64) float chains[kGemvNC];
  const int64_t blocks = (g.k + kGemmKC - 1) / kGemmKC;
  for (int64_t block = 0; block < blocks * g.terms; ++block) {
    const int64_t term = block / blocks, k = block % blocks * kGemmKC;
    const int64_t depth = least<V>(kGemmKC, g.k - k);
    // The row is one step of panels whose lanes are its elements.
    pack<V, V::kLanes>(g.a.element, g.b.element,
                       {element_at<V>(g.a, batch * g.a.batch_stride + term * g.a.term_stride +
                                               row * g.a.row_stride + k * g.a.col_stride),
                        g.a.col_stride, 0, depth},
                       depth, 1, a_row);
    const void* const b = element_at<V>(
        g.b, batch * g.b.batch_stride + term * g.b.term_stride + k * g.b.row_stride + col * g.b.col_stride);
    with_elements<V>(g.b.element, g.a.element, [&](auto source) {
      using Source = decltype(source);
      const auto* const from = static_cast<const typename Source::Storage*>(b);
      if (g.b.col_stride == 1 && g.n >= V::kLanes) {
        add_rows<V, Source>(a_row, from, g.b.row_stride, depth, cols, chains);
        return;
      }
      add_columns<V, Source>(a_row, from, g.b.col_stride, depth, cols, chains);
    });
    for (int64_t j = 0; j < cols; ++j) sums[j] = block == 0 ? chains[j] : sums[j] + chains[j];
  }
}

template <class V>
void gemv(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  static_assert(kGemvNC <= V::kMR * kGemmNC);
  for (int64_t col = part.col_begin; col < part.col_end; col += kGemvNC) {
    const int64_t cols = least<V>(kGemvNC, part.col_end - col);
    for (int64_t row = part.row_begin; row < part.row_end; ++row) {
      multiply_row<V>(g, part.batch, row, col, cols, scratch.a, scratch.sums);
      finish_tile<V>(g, {part.batch, row, col, 1, cols}, scratch.sums, 0);
    }
  }
}

}  // namespace mantissa::kernels::cpu
