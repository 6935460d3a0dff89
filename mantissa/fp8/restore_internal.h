#pragma once

// The values of quantized matrices without the scale of the whole tensor, for products.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/tiles_internal.h"

namespace mantissa::fp8 {

/// Sets `out`, a contiguous tensor in float32 or bfloat16, to code * the number of its block. Returns false if bfloat16
/// lacks one of the values or has it only as a subnormal number: `out` is not filled then. The shapes must fit.
bool restore(const QuantizedFp8& quantized, const at::Tensor& out);
bool restore(const QuantizedFp8Blocks& quantized, const at::Tensor& out);
bool restore(const QuantizedMXFP8& quantized, const at::Tensor& out);
bool restore(const QuantizedNVFP4& quantized, const at::Tensor& out);

/// Returns what the restored values are still to be multiplied by.
inline double scale_inv_of(const QuantizedFp8& quantized) {
  return *quantized.scale_inv.const_data_ptr<float>();
}
inline double scale_inv_of(const QuantizedFp8Blocks&) { return 1; }
inline double scale_inv_of(const QuantizedMXFP8&) { return 1; }
inline double scale_inv_of(const QuantizedNVFP4& quantized) {
  return 1 / static_cast<double>(*quantized.scale.const_data_ptr<float>());
}

/// `codes` is contiguous, in Float8_e4m3fn or Float8_e5m2.
inline CodedMatrix coded_matrix(const at::Tensor& codes) {
  const int64_t cols = codes.size(-1);
  return {static_cast<const uint8_t*>(codes.const_data_ptr()),
          codes.scalar_type() == at::kFloat8_e5m2 ? kernels::CodeFormat::kE5M2 : kernels::CodeFormat::kE4M3,
          cols == 0 ? 0 : codes.numel() / cols, cols};
}

/// Returns the restored values of codes in 8 bits, which may have any strides.
template <class Quantized>
at::Tensor restored_in_float32(Quantized quantized) {
  quantized.codes = quantized.codes.contiguous();
  at::Tensor out = at::empty(quantized.codes.sizes(), quantized.codes.options().dtype(at::kFloat));
  restore(quantized, out);
  return out;
}

}  // namespace mantissa::fp8
