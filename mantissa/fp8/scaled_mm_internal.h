#pragma once

// Products of factors by at::_scaled_mm, which uses the tensor cores of a device.

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/quantizer_internal.h"

namespace mantissa::fp8 {

/// The arguments of at::_scaled_mm for a b^T: `self` is [m, k] and row-major, `mat2` [k, n] and column-major.
/// Factors are padded with codes of 0, so the result may have more rows and columns than a b^T.
///
/// Padding: k and n are multiples of 16, with blocks also m. k is a multiple of the blocks, and with weights in blocks of
///          128 x 128 a multiple of 512, because cuBLAS reads their scales four at a time.
/// Scales:  of tensors: one number. Of 1 x 128: [m, k / 128] with columns side by side, transposed for mat2. Of 128 x 128:
///          [m / 128, k / 128], likewise. Of MXFP8: padded to 128 x 4 and in the order of the tensor cores.
struct ScaledMmArguments {
  at::Tensor self, mat2, scale_a, scale_b;
  bool fast_accumulation;
};

/// Whether at::_scaled_mm knows factors of this kind.
bool has_scaled_mm(const Fp8Factor& a, const Fp8Factor& b);

ScaledMmArguments scaled_mm_arguments(const Fp8Factor& a, const Fp8Factor& b, bool fast_accumulation);

/// Returns what product() does, with sums in the order and width of the device. A bias is rounded to a 16-bit `dtype` first, as
/// Transformer Engine does.
at::Tensor scaled_mm(const Fp8Factor& a, const Fp8Factor& b, const at::Tensor& bias, at::ScalarType dtype,
                     bool fast_accumulation);

/// Returns the exponents [rows, blocks] of MXFP8 as tensor cores read them: padded to 128 x 4, in tiles of 128 x 4 whose
/// rows i, i + 32, i + 64 and i + 96 are side by side.
at::Tensor swizzled(const at::Tensor& exponents);

}  // namespace mantissa::fp8
