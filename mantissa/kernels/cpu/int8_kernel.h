#pragma once

// The interface of each tier's kernels for 8-bit integers. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/cpu/gemm_kernel.h"
#include "mantissa/kernels/int8.h"

namespace mantissa::kernels::cpu {

/// Quantizes rows [begin, end): see QuantizeInt8. If `outliers` is not null, sets outliers[j] to 1 for each
/// column j that has an outlier in these rows.
using QuantizeInt8Part = void(const QuantizeInt8&, int64_t begin, int64_t end, uint8_t* outliers);
/// Restores rows [begin, end) of the result: see DequantizeInt8.
using DequantizeInt8Part = void(const DequantizeInt8&, int64_t begin, int64_t end);
/// Computes a part of a product: see ProductInt8. `Gemm` is gemm_of(product). The scratch memory is that of a
/// product of floats with the same build's micro-tile.
using ProductInt8Part = void(const ProductInt8&, const Gemm&, const GemmPart&, const GemmScratch&);

/// The same product as a Gemm whose operands have no data.
template <class Build = void>
constexpr Gemm gemm_of(const ProductInt8& p) {
  Gemm g;
  g.m = p.m;
  g.n = p.n;
  g.k = p.k;
  g.addend = p.addend;
  g.out = p.out;
  return g;
}

/// Returns the factor of the values of a row: see QuantizeInt8.
template <class Build>
float int8_factor(float scale) {
  constexpr float kLargest = 0x1.fffffep127F;
  const float factor = scale == 0 ? 0 : 127 / scale;
  return factor > kLargest ? kLargest : factor;  // 0 times inf would be NaN
}

namespace generic {  // the reference implementation
QuantizeInt8Part quantize_int8;
DequantizeInt8Part dequantize_int8;
ProductInt8Part product_int8;
}  // namespace generic
namespace avx2 {
QuantizeInt8Part quantize_int8;
DequantizeInt8Part dequantize_int8;
ProductInt8Part product_int8;
}  // namespace avx2
namespace avx512 {
QuantizeInt8Part quantize_int8;
DequantizeInt8Part dequantize_int8;
ProductInt8Part product_int8;
}  // namespace avx512
namespace avx512_vnni {
ProductInt8Part product_int8;
}

}  // namespace mantissa::kernels::cpu
