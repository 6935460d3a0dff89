#pragma once

// The interface of each tier's product kernel. This header follows the rules of element.h. The names are
// those of BLIS: a micro-kernel multiplies a micro-panel of a (MR rows) by a micro-panel of b (NR columns)
// into a micro-tile of MR x NR sums that stay in registers. Blocks are MC rows of a, NC columns of b and KC
// steps of k.

#include <cstdint>

#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels::cpu {

/// The part of one matrix's result that a call computes; it has at least one element.
///
/// Numerics: each result is a chain of float32 fused multiply-adds over at most KC elements of k, in order.
///           The sums of such blocks are added in order, those of one term after those of the previous term.
///           There are two exceptions. Up to three rows or columns against a matrix that is adjacent along k:
///           each vector lane has its own chains, which are added at the end of the block. Tier avx512_bf16
///           with bf16, unless there are up to three rows or columns, or k is at most 3 and at least 32
///           results are adjacent: its blocks have twice as many elements, the later one of two adjacent
///           elements comes first, and operands and sums below the normal range of float32 become 0, as in
///           libtorch's own products on such CPUs.
struct GemmPart {
  int64_t batch, row_begin, row_end, col_begin, col_end;
};

/// Blocks that stay in the caches: an MC x KC block of a in float32 (216 KiB) stays in the L2 cache, while a
/// KC x NC block of b (768 KiB) passes through in micro-panels of 24 KiB, which stay in the L1 cache. Sums
/// that wait for the next block of k are kept for kGemmSumRows rows, so that b is packed again only once per
/// kGemmSumRows rows.
constexpr int64_t kGemmKC = 384, kGemmMC = 144, kGemmNC = 512, kGemmSumRows = 576;

/// The scratch memory of one call, 64-byte aligned. A packed float32 holds one value, or two bf16 values.
struct GemmScratch {
  float* a;     ///< MC rows, rounded up to MR, x KC, plus kGemmSlack
  float* b;     ///< NC columns, rounded up to NR, x KC, plus kGemmSlack
  float* sums;  ///< kGemmSumRows x NC, unless there is only one block of k; both rounded up to MR and NR
};
/// The slack at the end of a micro-panel, where whole vectors are stored, too.
constexpr int64_t kGemmSlack = 16;

using GemmKernel = void(const Gemm&, const GemmPart&, const GemmScratch&);

namespace generic {  // the reference implementation
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
