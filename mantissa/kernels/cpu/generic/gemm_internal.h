#pragma once

// The reference product, for operands b of any kind.

#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/cpu/generic/activation_internal.h"
#include "mantissa/kernels/cpu/generic/element_internal.h"

namespace mantissa::kernels::cpu::generic {
namespace {

float rounded(float value, Element to) {
  if (to == Element::kBFloat16) return widen_bf16(narrow_bf16(value));
  return to == Element::kFloat16 ? widen_fp16(narrow_fp16(value)) : value;
}

/// Reads an element, and rounds it to `round_to` if it is float32.
float load_rounded(const ConstMatrix& matrix, Element round_to, int64_t index) {
  const float value = load(matrix.element, matrix.data, index);
  return matrix.element == Element::kFloat32 ? rounded(value, round_to) : value;
}

constexpr int64_t kStrip = 64;  // columns that are summed together

/// Computes sums[row][column] of the strip that begins at `col`, for rows [row_begin, row_end). load_b(term, k,
/// column) returns an element of b.
template <typename LoadB>
void multiply_strip(const Gemm& g, const GemmPart& part, const GemmScratch& scratch, int64_t row_begin,
                    int64_t row_end, int64_t col, int64_t cols, const LoadB& load_b) {
  const int64_t blocks = (g.k + kGemmKC - 1) / kGemmKC;
  for (int64_t block = 0; block < blocks * g.terms; ++block) {
    const int64_t term = block / blocks, k_begin = block % blocks * kGemmKC;
    const int64_t depth = least(kGemmKC, g.k - k_begin);
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < cols; ++j) scratch.b[k * kStrip + j] = load_b(term, k_begin + k, col + j);
    for (int64_t i = row_begin; i < row_end; ++i) {
      const int64_t row = part.batch * g.a.batch_stride + term * g.a.term_stride + i * g.a.row_stride;
      float chain[kStrip] = {};
      for (int64_t k = 0; k < depth; ++k) {
        const float a = load_rounded(g.a, g.b.element, row + (k_begin + k) * g.a.col_stride);
        const float* const b = scratch.b + k * kStrip;
        // std::fma is not used, because CPUs of this tier may lack it. A product of two 16-bit values is
        // exact in float32 unless it leaves the range, so the sum is the only rounding here, too.
        for (int64_t j = 0; j < cols; ++j) chain[j] += a * b[j];
      }
      float* const sums = scratch.sums + (i - row_begin) * kStrip;
      for (int64_t j = 0; j < cols; ++j) sums[j] = block == 0 ? chain[j] : sums[j] + chain[j];
    }
  }
}

/// Writes `cols` sums of row `i` from column `col` on, and overwrites them.
void finish_strip(const Gemm& g, const GemmPart& part, int64_t i, int64_t col, int64_t cols, float* values) {
  const int64_t out = part.batch * g.out.batch_stride + i * g.out.row_stride;
  const int64_t addend = part.batch * g.addend.batch_stride + i * g.addend.row_stride;
  for (int64_t j = 0; j < cols; ++j) {
    values[j] *= g.alpha;
    if (g.addend.data)
      values[j] = std::fma(
          g.beta, load_rounded(g.addend, g.round_to, addend + (col + j) * g.addend.col_stride), values[j]);
  }
  for (int64_t j = 0; j < cols; ++j) values[j] = activated(g.activation, values[j]);
  for (int64_t j = 0; j < cols; ++j)
    store(g.out.element, g.out.data, out + (col + j) * g.out.col_stride,
          g.out.element == Element::kFloat32 ? rounded(values[j], g.round_to) : values[j]);
}

template <typename LoadB>
void gemm_with(const Gemm& g, const GemmPart& part, const GemmScratch& scratch, const LoadB& load_b) {
  for (int64_t col = part.col_begin; col < part.col_end; col += kStrip) {
    const int64_t cols = least(kStrip, part.col_end - col);
    for (int64_t row_begin = part.row_begin; row_begin < part.row_end; row_begin += kGemmSumRows) {
      const int64_t row_end = least(row_begin + kGemmSumRows, part.row_end);
      multiply_strip(g, part, scratch, row_begin, row_end, col, cols, load_b);
      for (int64_t i = row_begin; i < row_end; ++i)
        finish_strip(g, part, i, col, cols, scratch.sums + (i - row_begin) * kStrip);
    }
  }
}

}  // namespace
}  // namespace mantissa::kernels::cpu::generic
