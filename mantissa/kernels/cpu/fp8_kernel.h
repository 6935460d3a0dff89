#pragma once

// The interface of each tier's casts to 8 and 4 bits. This header follows the rules of element.h.

#include "mantissa/kernels/fp8.h"

namespace mantissa::kernels::cpu {

/// These process a whole problem on the calling thread, with the same bits in every tier. The quantization to 8
/// bits returns what FindMagnitudes would, from the same pass.
using FindMagnitudesOf = Magnitudes(const FindMagnitudes&);
using QuantizeFp8Values = Magnitudes(const QuantizeFp8&);
using DequantizeFp8Values = void(const DequantizeFp8&);
using QuantizeE2M1Values = void(const QuantizeE2M1&);
using FindBlockMagnitudesOf = void(const FindBlockMagnitudes&);
using QuantizeBlocksOf = void(const QuantizeFp8Blocks&);
using RestoreBlocksOf = bool(const RestoreBlocks&);

namespace generic {
FindMagnitudesOf find_magnitudes;
QuantizeFp8Values quantize_fp8;
DequantizeFp8Values dequantize_fp8;
QuantizeE2M1Values quantize_e2m1;
FindBlockMagnitudesOf find_block_magnitudes;
QuantizeBlocksOf quantize_fp8_blocks;
RestoreBlocksOf restore_blocks;
}  // namespace generic
namespace avx2 {
FindMagnitudesOf find_magnitudes;
QuantizeFp8Values quantize_fp8;
DequantizeFp8Values dequantize_fp8;
QuantizeE2M1Values quantize_e2m1;
FindBlockMagnitudesOf find_block_magnitudes;
QuantizeBlocksOf quantize_fp8_blocks;
RestoreBlocksOf restore_blocks;
}  // namespace avx2
namespace avx512 {
FindMagnitudesOf find_magnitudes;
QuantizeFp8Values quantize_fp8;
DequantizeFp8Values dequantize_fp8;
QuantizeE2M1Values quantize_e2m1;
FindBlockMagnitudesOf find_block_magnitudes;
QuantizeBlocksOf quantize_fp8_blocks;
RestoreBlocksOf restore_blocks;
}  // namespace avx512

}  // namespace mantissa::kernels::cpu
