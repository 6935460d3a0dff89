#pragma once

// Weights in 4-bit codes, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"
#include "mantissa/kernels/gemm.h"

namespace mantissa::kernels {

/// What the codes stand for: kNF4Values and kFP4Values of core/code_tables.h.
enum class Code4 : uint8_t { kNF4, kFP4 };

/// The values of all kernels' blocks: a power of two from 32 to 4096.
constexpr int64_t kSmallestBlock4 = 32, kLargestBlock4 = 4096;

/// Quantizes `count` adjacent values in blocks of `block`; the last block may be shorter.
///
/// Numerics: absmax[b] is the largest magnitude of block b, in float32; NaN if the block has a NaN. A value's
///           code is nf4_code() or fp4_code() of float32(value) * (1 / absmax), rounded after each of the two
///           operations. Where 1 / absmax would overflow, it is value / absmax. A block of zeros has the codes
///           of zero.
/// Layout:   values 2 i and 2 i + 1 are the high and the low half of byte i, (count + 1) / 2 bytes. The half
///           after an odd count has the code of zero.
struct Quantize4 {
  const void* values = nullptr;
  Element element = Element::kFloat32;
  int64_t count = 0, block = 0;
  Code4 code = Code4::kNF4;
  uint8_t* codes = nullptr;
  float* absmax = nullptr;
};

/// The inverse: value i is table[code i] * absmax[i / block] in float32, then rounded once to `element`.
struct Dequantize4 {
  const uint8_t* codes = nullptr;
  const float* absmax = nullptr;
  int64_t count = 0, block = 0;
  Code4 code = Code4::kNF4;
  void* values = nullptr;
  Element element = Element::kFloat32;
};

/// A weight [rows, cols] in the layout of Quantize4, row by row. A block may cross the end of a row.
struct Weight4 {
  const uint8_t* codes = nullptr;
  const float* absmax = nullptr;
  int64_t rows = 0, cols = 0, block = 0;
  Code4 code = Code4::kNF4;
};

/// Double quantization: the scales of a weight in 8 bits. The scale of block b is
/// map[codes[b]] * absmax[b / kNestedBlock4] + offset, rounded to float32 after each of the two operations.
struct NestedScales4 {
  const uint8_t* codes = nullptr;
  const float* map = nullptr;  ///< 256 values
  const float* absmax = nullptr;
  const float* offset = nullptr;  ///< one number
};
constexpr int64_t kNestedBlock4 = 256;

/// Restores some rows of a weight, as an embedding looks them up: row i of `values` [count, cols] has the bits
/// that Dequantize4 gives row rows[i]. Rows may occur several times.
/// Errors: none; each of `rows` is from 0 to weight.rows - 1, and cols is at least 1.
struct DequantizeRows4 {
  Weight4 weight;             ///< its absmax is not read if there are nested scales
  NestedScales4 nested = {};  ///< codes is nullptr without double quantization
  const int64_t* rows = nullptr;
  int64_t count = 0;
  void* values = nullptr;
  Element element = Element::kFloat32;
};

/// Computes out = a w^T + addend, as a layer does, or out = a w + addend, as its gradient does.
///
/// Shapes:   a [m, k]; w is `weight` [n, k] if `transposed`, otherwise [k, n]; addend and out [m, n]. Every
///           size is at least 1. A bias is an addend whose row stride is 0.
/// Numerics: those of Gemm, with the dequantized weight as a float32 operand, which is rounded to the 16-bit
///           type of a. Up to three rows times w^T are an exception, if the rows of w are whole blocks: there
///           the weight is not rounded, and the scale of a block multiplies the sum over the block. Tier amx_bf16
///           multiplies the bf16 numbers whose sum a value is: see docs/cpu-kernels-numerics.md.
/// Errors:   none; `out` must not overlap a.
struct Product4 {
  int64_t m = 0;
  ConstMatrix a;
  Weight4 weight;
  bool transposed = true;
  ConstMatrix addend;  ///< not read if data is nullptr
  Matrix out;
};

}  // namespace mantissa::kernels
