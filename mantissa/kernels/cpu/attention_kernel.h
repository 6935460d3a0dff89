#pragma once

// What each tier's attention kernels implement; on the terms of element.h.

#include <cstdint>

#include "mantissa/kernels/attention.h"

namespace mantissa::kernels::cpu {

/// The queries of one head that a call computes. Their first is a multiple of the build's NR.
///
/// Numerics: sums are chains of float32 fused multiply-adds in the order of width and of the keys, in blocks of keys
///           whose sums are added in order. With up to six queries each vector lane has chains of its own.
struct AttentionPart {
  int64_t batch, head, query_begin, query_end;
};

/// What a call computes, from the queries of heads [head_begin, head_end), which read keys and values of kv_head, and
/// from these keys: the gradient of the queries, for which the keys must be all, or that of keys and values, for which
/// heads and queries must be all, or both. The first query is a multiple of NR.
///
/// Numerics: chains over blocks of keys or queries, which are added in order; heads that share a key are added one
///           after the other.
struct AttentionGradientPart {
  int64_t batch, kv_head, head_begin, head_end, query_begin, query_end, key_begin, key_end;
  bool of_queries, of_keys;
};

/// Blocks that stay in the caches, in floats: of keys, and as many of values; of queries and their sums. Then
/// what a block has at most of keys and queries. The gradient keeps more for smaller blocks.
constexpr int64_t kAttentionKeyFloats = 24576, kAttentionQueryFloats = 32768, kAttentionKeys = 384,
                  kAttentionQueries = 1024;
constexpr int64_t kGradientKeyFloats = 8192, kGradientQueryFloats = 8192, kGradientKeys = 120,
                  kGradientQueries = 128;

using AttentionKernel = void(const Attention&, const AttentionPart&, float* scratch);
using AttentionGradientKernel = void(const AttentionGradient&, const AttentionGradientPart&, float* scratch);
/// How many floats of scratch, 64-byte aligned, a call needs. A gradient needs them for `keys` keys.
using AttentionScratchSize = int64_t(const Attention&);
using AttentionGradientScratchSize = int64_t(const Attention&, int64_t keys);

namespace generic {
AttentionKernel attention;
AttentionScratchSize attention_scratch_size;
AttentionGradientKernel attention_gradient;
AttentionGradientScratchSize attention_gradient_scratch_size;
}  // namespace generic
namespace avx2 {
AttentionKernel attention;
AttentionScratchSize attention_scratch_size;
AttentionGradientKernel attention_gradient;
AttentionGradientScratchSize attention_gradient_scratch_size;
}  // namespace avx2
namespace avx512 {
AttentionKernel attention;
AttentionScratchSize attention_scratch_size;
AttentionGradientKernel attention_gradient;
AttentionGradientScratchSize attention_gradient_scratch_size;
}  // namespace avx512

}  // namespace mantissa::kernels::cpu
