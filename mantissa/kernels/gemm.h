#pragma once

// Products of matrices, for any device; on the terms of element.h.

#include <cstdint>

#include "mantissa/kernels/activation.h"
#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// A matrix in the device's memory, or one for each matrix of a batch and each term of a sum. Strides count elements,
/// may have any sign, and may be 0 in what is only read.
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
/// Shapes:   a [m, k], b [k, n], addend and out [m, n]; every size is at least 1, batch and terms too. The bias of a
///           column or a row is an addend whose other stride is 0.
/// Numerics: a float32 operand is first rounded to the other's 16-bit type, as a cast before the product would; two
///           float32 operands are multiplied as they are. Products and sums are float32, in an order that the device
///           defines (cpu/gemm_kernel.h has the CPU's). alpha, addend and activation follow in float32, then one
///           rounding, to nearest even, NaN kept. No result depends on the split over threads.
/// Bound:    |out - exact| <= E + u (|exact| + E), where u is 2^-8 for bf16, 2^-11 for fp16 (half a last place; below
///           their normal range half the smallest value, absolute) and
///           E = (terms k + 8) 2^-24 (|alpha| sum |a||b| + |beta addend|). GELU adds its own error (activation.h),
///           which differs between builds.
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

}  // namespace mantissa::kernels
