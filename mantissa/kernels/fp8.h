#pragma once

// Casts to numbers of 8 and 4 bits, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// torch's Float8_e4m3fn and Float8_e5m2.
enum class Fp8 : uint8_t { kE4M3, kE5M2 };

/// So many values share a factor in E2M1.
constexpr int64_t kE2M1Block = 16;

/// The value of each E2M1 code: a sign (bit 3), two bits of exponent and one of mantissa.
/// Source: Open Compute Project 2023, Microscaling Formats (MX) Specification 1.0, section 5.3.3.
inline constexpr float kE2M1Values[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                          -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

/// What a kernel says about the values that it has read.
struct Magnitudes {
  float largest = 0;     ///< inf if there is one; NaN does not count
  bool has_nan = false;  ///< of any sign
};

/// Finds the magnitudes of `count` values.
struct FindMagnitudes {
  const void* in = nullptr;
  Element element = Element::kFloat32;
  int64_t count = 0;
};

/// Sets codes[i] to in[i] * scale in the format.
///
/// Numerics: the product is float32. It is rounded to nearest, ties to even, with subnormal results. What is
///           too large, and inf, becomes the largest finite value: 448 or 57344. NaN becomes 0x7f, and keeps its sign.
struct QuantizeFp8 {
  const void* in = nullptr;
  Element element = Element::kFloat32;
  uint8_t* codes = nullptr;
  int64_t count = 0;
  Fp8 format = Fp8::kE4M3;
  float scale = 1;
};

/// Sets out[i] to the value of codes[i] times scale_inv, a float32 product.
struct DequantizeFp8 {
  const uint8_t* codes = nullptr;
  float* out = nullptr;
  int64_t count = 0;
  Fp8 format = Fp8::kE4M3;
  float scale_inv = 1;
};

/// A band of a matrix, rows x cols, whose rows begin `stride` values apart. Groups of `width` columns, which is 1, 16, 32
/// or 128 and divides cols, make blocks of rows x width values. This finds the largest magnitude of each block. NaN does
/// not count, or is the result if `keeps_nan`.
struct FindBlockMagnitudes {
  const void* in = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0, cols = 0, stride = 0, width = 1;
  bool keeps_nan = false;
  float* largest = nullptr;  ///< [cols / width]
};

/// Quantizes such a band, as QuantizeFp8 does, by a scale for each block.
struct QuantizeFp8Blocks {
  const void* in = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0, cols = 0, stride = 0, width = 1;  ///< `stride` is also that of the codes
  const float* scales = nullptr;                      ///< [cols / width]
  uint8_t* codes = nullptr;
  Fp8 format = Fp8::kE4M3;
};

/// What a byte or half a byte means.
enum class CodeFormat : uint8_t { kE4M3, kE5M2, kE2M1 };

/// Sets each value of such a band to that of its code times the number of its block, a float32 product. Codes in E2M1
/// lie two in a byte; cols and stride are even then. `out_element` is float32, or bfloat16, where the last bits of a
/// number are cut off. The kernel returns whether bfloat16 has every number, and none as a subnormal one.
struct RestoreBlocks {
  const uint8_t* codes = nullptr;
  CodeFormat format = CodeFormat::kE4M3;
  int64_t rows = 0, cols = 0, stride = 0, width = 1;  ///< of values, also in E2M1
  const float* scales = nullptr;                      ///< [cols / width]
  void* out = nullptr;
  Element out_element = Element::kFloat32;
};

/// Sets the code of value i to in[i] * factors[i / width] in E2M1: see kE2M1Values.
/// The first of two codes is in the low half of their byte. `count` is a multiple of 16.
///
/// Numerics: the product is float32, and is rounded to nearest, ties to the even code. What is larger than 6
///           becomes 6. The format has no NaN: its code is 0.
///           With stochastic rounding value i takes draw `offset` + i of stream `stream` under key `seed`, as
///           StochasticRound does, and the next larger magnitude is chosen with the probability that keeps the mean,
///           in steps of 2^-16.
struct QuantizeE2M1 {
  const void* in = nullptr;
  Element element = Element::kFloat32;
  uint8_t* codes = nullptr;
  int64_t count = 0;
  const float* factors = nullptr;
  bool rounds_stochastically = false;
  uint64_t seed = 0;
  int64_t stream = 0;
  uint64_t offset = 0;         ///< a multiple of 16
  int64_t width = kE2M1Block;  ///< or 1
};

}  // namespace mantissa::kernels
