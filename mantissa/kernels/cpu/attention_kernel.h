#pragma once

// The interface of each tier's attention kernels. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/attention.h"

namespace mantissa::kernels::cpu {

/// The queries of one head that a call computes. The first one is a multiple of the build's NR.
///
/// Numerics: sums are chains of float32 fused multiply-adds in the order of the width and of the keys. Keys
///           come in blocks, and the sums of the blocks are added in order. With up to six queries each
///           vector lane has its own chains.
struct AttentionPart {
  int64_t batch, head, query_begin, query_end;
};

/// The part of the gradient that a call computes, for heads [head_begin, head_end), which read keys and
/// values of kv_head. It is the gradient of the queries (the keys must then be all keys), that of keys and
/// values (heads and queries must then be all), or both. The first query is a multiple of NR.
///
/// Numerics: chains over blocks of keys or queries, which are added in order. Heads that share a key are
///           added one after the other.
struct AttentionGradientPart {
  int64_t batch, kv_head, head_begin, head_end, query_begin, query_end, key_begin, key_end;
  bool of_queries, of_keys;
};

/// Blocks that stay in the caches. The first two are sizes in floats: of keys (values take as many), and of
/// queries and their sums. The others limit the number of keys and queries of a block. The gradient needs
/// more memory per block, so its blocks are smaller.
constexpr int64_t kAttentionKeyFloats = 24576, kAttentionQueryFloats = 32768, kAttentionKeys = 384,
                  kAttentionQueries = 1024;
constexpr int64_t kGradientKeyFloats = 8192, kGradientQueryFloats = 8192, kGradientKeys = 120,
                  kGradientQueries = 128;

using AttentionKernel = void(const Attention&, const AttentionPart&, float* scratch);
using AttentionGradientKernel = void(const AttentionGradient&, const AttentionGradientPart&, float* scratch);
/// Returns the number of floats of scratch that a call needs, 64-byte aligned; a gradient needs them for
/// `keys` keys.
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
