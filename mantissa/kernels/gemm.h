#pragma once

// Matrix products, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/activation.h"
#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// A matrix in the device's memory, or one for each matrix of a batch and each term of a sum. Strides count
/// elements, may have any sign, and may be 0 in an operand that is only read.
template <typename Pointer>
struct MatrixOf {
  Pointer data = nullptr;
  Element element = Element::kFloat32;
  int64_t row_stride = 0, col_stride = 0, batch_stride = 0, term_stride = 0;
};
using ConstMatrix = MatrixOf<const void*>;
using Matrix = MatrixOf<void*>;

/// Computes out = activation(alpha * (the sum over `terms` of a b) + beta * addend) for each of `batch`
/// matrices.
///
/// Shapes:   a [m, k], b [k, n], addend and out [m, n]; every size is at least 1, batch and terms included. A
///           bias per column or per row is an addend whose other stride is 0.
/// Numerics: a float32 operand is first rounded to the 16-bit type of the other operand, as a cast before the
///           product would do; two float32 operands are multiplied as they are. Products and sums are
///           float32, in an order that the device defines (cpu/gemm_kernel.h for the CPU). alpha, addend and
///           activation follow in float32; then the result is rounded once, to nearest even, and NaN is kept.
///           No result depends on how the work is split over threads.
/// Bound:    |out - exact| <= E + u (|exact| + E), where u is 2^-8 for bf16 and 2^-11 for fp16 (half an ulp;
///           below their normal range it is half the smallest value, absolute) and E = (terms k + 8) 2^-24
///           (|alpha| sum |a||b| + |beta addend|). GELU adds its own error (activation.h), which differs
///           between builds.
/// Errors:   none; `out` must overlap neither a nor b, and may overlap the addend only if both are the same
///           matrix.
struct Gemm {
  int64_t m = 0, n = 0, k = 0, batch = 1, terms = 1;
  ConstMatrix a = {}, b = {};
  ConstMatrix addend = {};  ///< not read, whatever beta is, if data is nullptr
  Matrix out = {};
  float alpha = 1, beta = 1;
  Activation activation = Activation::kNone;
  /// Unless this is kFloat32, a float32 addend is rounded to this type when it is read, and a float32 result
  /// before it is written, as casts before and after the product would do.
  Element round_to = Element::kFloat32;
};

}  // namespace mantissa::kernels
