#pragma once

// The interface of each tier's block-wise kernels. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/blockwise.h"

namespace mantissa::kernels::cpu {

/// These process the blocks [first, last) of a problem. They round as the problem's struct says, with the
/// same bits in every tier.
using QuantizeBlocks = void(const QuantizeBlockwise&, int64_t first, int64_t last);
using DequantizeBlocks = void(const DequantizeBlockwise&, int64_t first, int64_t last);
using UpdateBlocks = void(const BlockwiseUpdate&, int64_t first, int64_t last);

namespace generic {
QuantizeBlocks quantize_blocks;
DequantizeBlocks dequantize_blocks;
UpdateBlocks update_blocks;
}  // namespace generic
namespace avx2 {
QuantizeBlocks quantize_blocks;
DequantizeBlocks dequantize_blocks;
UpdateBlocks update_blocks;
}  // namespace avx2
namespace avx512 {
QuantizeBlocks quantize_blocks;
DequantizeBlocks dequantize_blocks;
UpdateBlocks update_blocks;
}  // namespace avx512

}  // namespace mantissa::kernels::cpu
