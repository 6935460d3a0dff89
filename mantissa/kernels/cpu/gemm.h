#pragma once

// What a tier's product kernel takes. Seen by every tier, so nothing here may be compiled into code of its
// own: no function, no torch or STL container header.

#include <cstdint>

namespace mantissa::cpu {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };

/// Applied to the finished value in float32, before its one rounding.
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh };

/// A matrix, or one for each of a batch and of the terms of a sum, in anybody's memory. Strides count
/// elements, may have any sign and may be 0 in what is only read.
template <typename Pointer>
struct MatrixOf {
  Pointer data = nullptr;
  Element element = Element::kFloat32;
  int64_t row_stride = 0, col_stride = 0, batch_stride = 0, term_stride = 0;
};
using ConstMatrix = MatrixOf<const void*>;
using Matrix = MatrixOf<void*>;

/// out = activation(alpha * (the sum over `terms` of a b) + beta * addend), for each of `batch` matrices.
///
/// Shapes:   a [m, k], b [k, n], addend and out [m, n]; all of them at least 1, and so are batch and terms. A
///           bias of a column or a row is an addend whose other stride is 0.
/// Numerics: a float32 operand is first rounded to the other's 16-bit type, as a cast before the product
///           would; two float32 operands are multiplied as they are. Products and sums are float32: for each
///           result a chain of fused multiply-adds over at most kGemmBlockK elements of k, in order, and the
///           sums of such blocks added in order, those of one term after the other's. So no result depends on
///           the split over threads. alpha, addend and activation follow in float32, then one rounding, to
///           nearest even, NaN kept.
///           Up to three rows or columns against a matrix that is adjacent along k are the exception: there
///           each vector lane has chains of its own, which are added at the end of the block.
///           avx512_bf16 is another, for bf16 and more rows and columns than that, but not for up to three of
///           k and 32 or more adjacent results: blocks are of twice as many elements, of each two neighbours
///           the later comes first, and what is below the normal range of float32, operand or sum, becomes
///           0, as in libtorch's own products there.
/// Bound:    |out - exact| <= E + u (|exact| + E), where u is 2^-8 for bf16, 2^-11 for fp16 (half a last
///           place; below their normal range half the smallest value, absolute) and
///           E = (terms k + 8) 2^-24 (|alpha| sum |a||b| + |beta addend|). GELU adds its own
///           (activation.h), which differs between tiers.
/// Errors:   none; `out` overlaps neither a nor b, and the addend only if both are the same matrix.
struct Gemm {
  int64_t m = 0, n = 0, k = 0, batch = 1, terms = 1;
  ConstMatrix a, b;
  ConstMatrix addend;  ///< not read, whatever beta, if data is nullptr
  Matrix out;
  float alpha = 1, beta = 1;
  Activation activation = Activation::kNone;
  /// Unless kFloat32: a float32 addend is rounded to it while it is read, and a result that goes to float32
  /// before it is written, as casts before and after the product would.
  Element round_to = Element::kFloat32;
};

/// The part of one matrix's result that a call computes; at least one element.
struct GemmPart {
  int64_t batch, row_begin, row_end, col_begin, col_end;
};

/// Blocks that stay in the caches: a kGemmBlockM x kGemmBlockK part of a in float32 (216 KiB) in the second
/// level, while a kGemmBlockK x kGemmBlockN part of b (768 KiB) passes through in slivers of 24 KiB, which
/// stay in the first. Sums that wait for the next block of k are kept for kGemmRows rows, so that b is packed
/// again only once for as many.
constexpr int64_t kGemmBlockK = 384, kGemmBlockM = 144, kGemmBlockN = 512, kGemmRows = 576;

/// Working memory of one call; 64-byte aligned. A packed float32 is one value, or two of bf16.
struct GemmScratch {
  float* a;     ///< kGemmBlockM rows, rounded up to the tile's, x kGemmBlockK, and kGemmSlack
  float* b;     ///< kGemmBlockN columns, rounded up likewise, x kGemmBlockK, and kGemmSlack
  float* sums;  ///< kGemmRows x kGemmBlockN, unless one block of k is all; both rounded up likewise
};
/// Whole vectors are stored at the end of a packed panel, too.
constexpr int64_t kGemmSlack = 16;

using GemmKernel = void(const Gemm&, const GemmPart&, const GemmScratch&);

namespace generic {  // the definition of correct
GemmKernel gemm;
}
namespace avx2 {
GemmKernel gemm;
}
namespace avx512 {
GemmKernel gemm;
}
namespace avx512_bf16 {
GemmKernel gemm;
}

}  // namespace mantissa::cpu
