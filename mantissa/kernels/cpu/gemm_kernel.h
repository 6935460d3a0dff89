#pragma once

// What each tier's product kernel implements; on the terms of element.h. The names are those of BLIS: a micro-kernel
// multiplies a micro-panel of a, MR rows, by a micro-panel of b, NR columns, into a micro-tile of MR x NR sums that
// stay in registers. Blocks are MC rows of a, NC columns of b and KC steps of k.

#include <cstdint>

#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels::cpu {

/// The part of one matrix's result that a call computes; at least one element.
///
/// Numerics: for each result a chain of float32 fused multiply-adds over at most KC elements of k, in order; the sums
///           of such blocks are added in order, those of one term after those of another.
///           Up to three rows or columns against a matrix that is adjacent along k are an exception: each vector lane
///           has chains of its own, which are added at the end of the block.
///           Tier avx512_bf16 is another exception, for bf16, unless there are up to three rows or columns, or up to
///           three of k and at least 32 adjacent results: its blocks have twice as many elements, the later of two
///           neighbours comes first, and what is below the normal range of float32, operand or sum, becomes 0, as in
///           libtorch's own products on such CPUs.
struct GemmPart {
  int64_t batch, row_begin, row_end, col_begin, col_end;
};

/// Blocks that stay in the caches: an MC x KC block of a in float32 (216 KiB) stays in the second level, while a
/// KC x NC block of b (768 KiB) passes through in micro-panels of 24 KiB, which stay in the first. Sums that wait for
/// the next block of k are kept for kGemmSumRows rows, so that b is packed again only once for as many.
constexpr int64_t kGemmKC = 384, kGemmMC = 144, kGemmNC = 512, kGemmSumRows = 576;

/// Working memory of one call; 64-byte aligned. A packed float32 holds one value, or two of bf16.
struct GemmScratch {
  float* a;     ///< MC rows, rounded up to MR, x KC, and kGemmSlack
  float* b;     ///< NC columns, rounded up to NR, x KC, and kGemmSlack
  float* sums;  ///< kGemmSumRows x NC, unless one block of k is all; both rounded up likewise
};
/// Whole vectors are stored at the end of a micro-panel, too.
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

}  // namespace mantissa::kernels::cpu
