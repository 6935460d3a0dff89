#pragma once

// Products of 8-bit integers with scales, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"
#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels {

/// Quantizes each row of a matrix [rows, cols].
///
/// Numerics: scales[i] is the largest magnitude of row i; NaN if the row has a NaN. A code is value * (127 /
///           scale), rounded to the nearest integer, ties to even; 0 in a row of zeros. Where 127 / scale would
///           overflow, it is the largest float32. If `threshold` is not 0, values whose magnitude reaches it
///           are outliers: they do not count for the scale, and their codes are undefined.
struct QuantizeInt8 {
  const void* values = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0, cols = 0, row_stride = 0;  ///< the values of a row are adjacent
  float threshold = 0;
  int8_t* codes = nullptr;  ///< [rows, cols]
  float* scales = nullptr;  ///< [rows]
};

/// Restores rows of codes [.., cols]: code * scale / 127 in float32, rounded after each of the two operations, then
/// rounded once to `element`. Row i of `values` [count, cols] is row rows[i] of the codes, or row i if `rows` is null.
struct DequantizeInt8 {
  const int8_t* codes = nullptr;
  const float* scales = nullptr;  ///< one for each row of the codes
  const int64_t* rows = nullptr;
  int64_t count = 0, cols = 0;  ///< cols is at least 1
  void* values = nullptr;
  Element element = Element::kFloat32;
};

/// The longest sum of products of codes that int32 can hold. quantize_int8() makes codes from -127 to 127; a file of
/// another program may have -128.
constexpr int64_t kMaxInt8Depth = 0x7fffffff / (128 * 128);

/// Computes out = (a b^T) * scale * a_scales[row] * b_scales[column] + addend.
///
/// Shapes:   a [m, k], b [n, k], adjacent along k; addend and out [m, n]. Every size is at least 1, and k is at
///           most kMaxInt8Depth. A bias is an addend whose row stride is 0.
/// Numerics: the sums are exact int32. They are converted to float32 and multiplied first by (scale *
///           a_scales[row]), then by b_scales[column]; then the addend follows in float32, and the result is
///           rounded once. Every build gives the same bits.
struct ProductInt8 {
  int64_t m = 0, n = 0, k = 0;
  const int8_t *a = nullptr, *b = nullptr;
  int64_t a_stride = 0, b_stride = 0;  ///< between rows
  const float *a_scales = nullptr, *b_scales = nullptr;
  float scale = 1;
  ConstMatrix addend;  ///< not read if data is nullptr
  Matrix out;
  int32_t* sums = nullptr;  ///< unless null, the sums are written to it, [m, n], and nothing to `out`
};

}  // namespace mantissa::kernels
