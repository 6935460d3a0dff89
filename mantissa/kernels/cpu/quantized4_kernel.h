#pragma once

// The interface of each tier's kernels for 4-bit weights. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/quantized4.h"

namespace mantissa::kernels::cpu {

/// Quantizes blocks [begin, end): see Quantize4.
using Quantize4Part = void(const Quantize4&, int64_t begin, int64_t end);
/// Dequantizes values [begin, end), where `begin` is a multiple of 32: see Dequantize4.
using Dequantize4Part = void(const Dequantize4&, int64_t begin, int64_t end);
/// Dequantizes rows [begin, end) of the result: see DequantizeRows4.
using DequantizeRows4Part = void(const DequantizeRows4&, int64_t begin, int64_t end);
/// Computes a part of a product: see Product4. `Gemm` is gemm_of(product).
using Product4Part = void(const Product4&, const Gemm&, const GemmPart&, const GemmScratch&);

/// The product of up to kFewRows4 rows with w^T, which has a kernel of its own. The rows are arranged first in
/// the order in which the kernel decodes a weight; `to` has arranged_floats4() floats and is 64-byte aligned.
constexpr int64_t kFewRows4 = 3;
using ArrangeRows4 = void(const Product4&, float* to);
/// Computes columns [begin, end) of the result; `sums` has room for kFewRows4 * kStrip4 floats.
using FewRows4Part = void(const Product4&, const Gemm&, const float* arranged, int64_t begin, int64_t end,
                          float* sums);
constexpr int64_t kStrip4 = 64;

/// The product in tiles of AMX: micro-tiles of kTile4 x kTile4 and blocks of kTileKC4 steps of k. `scratch` has the
/// floats of tile_scratch4() and is 64-byte aligned.
constexpr int64_t kTile4 = 32, kTileKC4 = 256;
/// AVX-512 multiplies this many rows while the tiles multiply those of a micro-tile.
constexpr int64_t kVectorRows4 = 8;
using Tiles4Part = void(const Product4&, const Gemm&, const GemmPart&, float* scratch);

/// The number of bf16 numbers whose sum is a value of `element`.
template <class Build = void>
constexpr int64_t terms_of4(Element element) {
  return element == Element::kBFloat16 ? 1 : element == Element::kFloat16 ? 2 : 3;
}

/// The rows from which on tiles are faster. With fewer, splitting the weight takes longer than it saves.
template <class Build = void>
constexpr int64_t first_rows_in_tiles4(Element element) {
  return element == Element::kBFloat16 ? 8 : element == Element::kFloat16 ? 64 : 96;
}

/// The rows of a group in a product of m rows: those of a micro-tile and, where that makes fewer groups, vector rows. bf16,
/// which is one term, is multiplied in tiles alone. Parts of a product begin with a group, so that a row's bits do not
/// depend on the parts.
template <class Build = void>
constexpr int64_t group_rows4(int64_t terms, int64_t m) {
  constexpr int64_t kBoth = kTile4 + kVectorRows4;
  return terms > 1 && (m + kBoth - 1) / kBoth < (m + kTile4 - 1) / kTile4 ? kBoth : kTile4;
}

/// The panels of kTile4 columns that a weight is packed into: its terms and, for vector rows, itself in two.
template <class Build = void>
constexpr int64_t panels_of4(int64_t terms) {
  return terms > 1 ? terms + 2 : 1;
}

/// The floats of a packed group, of all packed rows, of one panel of the weight, and of the sums of rows x cols, for
/// groups of in_group rows.
struct TileScratch4 {
  int64_t group, rows, panel, sums;
};
template <class Build = void>
constexpr TileScratch4 tile_scratch4(int64_t terms, int64_t in_group, int64_t rows, int64_t cols) {
  constexpr int64_t kPanel = kTile4 * kTileKC4 / 2, kVector = kVectorRows4 * kTileKC4 + kGemmSlack;
  const int64_t groups = ((rows < kGemmSumRows ? rows : kGemmSumRows) + in_group - 1) / in_group;
  const int64_t lanes = ((cols < kGemmNC ? cols : kGemmNC) + kTile4 - 1) / kTile4 * kTile4;
  const int64_t group = kPanel * terms + (in_group > kTile4 ? kVector : 0);
  return {group, groups * group, kPanel * panels_of4<Build>(terms), groups * lanes * in_group};
}

/// True if a product has so few rows, and each row of the weight is a whole number of blocks.
template <class Build = void>
constexpr bool is_few_rows4(const Product4& p) {
  return p.transposed && p.m <= kFewRows4 && p.weight.cols % p.weight.block == 0;
}

/// The size of the arranged rows. Rows are padded to the 128 values that the widest kernel decodes at once.
template <class Build = void>
constexpr int64_t arranged_floats4(const Product4& p) {
  return p.m * ((p.weight.cols + 127) / 128 * 128);
}

/// The same product as a Gemm whose operand b has no data.
template <class Build = void>
constexpr Gemm gemm_of(const Product4& p) {
  Gemm g;
  g.m = p.m;
  g.n = p.transposed ? p.weight.rows : p.weight.cols;
  g.k = p.transposed ? p.weight.cols : p.weight.rows;
  g.a = p.a;
  g.addend = p.addend;
  g.out = p.out;
  return g;
}

namespace generic {  // the reference implementation
Quantize4Part quantize4;
Dequantize4Part dequantize4;
DequantizeRows4Part dequantize_rows4;
Product4Part product4;
}  // namespace generic
namespace avx2 {
Quantize4Part quantize4;
Dequantize4Part dequantize4;
DequantizeRows4Part dequantize_rows4;
Product4Part product4;
ArrangeRows4 arrange_rows4;
FewRows4Part few_rows4;
}  // namespace avx2
namespace avx512 {
Quantize4Part quantize4;
Dequantize4Part dequantize4;
DequantizeRows4Part dequantize_rows4;
Product4Part product4;
ArrangeRows4 arrange_rows4;
FewRows4Part few_rows4;
}  // namespace avx512
namespace avx512_bf16 {
Product4Part product4;
}
namespace amx_bf16 {
Tiles4Part tiles4;
}

}  // namespace mantissa::kernels::cpu
