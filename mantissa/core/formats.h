#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace mantissa {

/// A number format that weights, products, gradients or optimizer states can have. Some formats are no
/// at::ScalarType: TF32 is a way to multiply float32 tensors, and the values of INT8, NF4 and FP4 are codes
/// that have a meaning only together with their scales.
enum class Format {
  kFloat64,
  kFloat32,
  kTF32,
  kBFloat16,
  kFloat16,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt8,
  kNF4,
  kFP4
};

/// A row of the table of formats.
struct FormatInfo {
  Format format;
  std::string_view name;      ///< torch's or bitsandbytes's: "float16", "float8_e4m3fn", "nf4"
  int bits;                   ///< in memory, per value, without scales; TF32: of the float32 around it
  int exponent_bits;          ///< 0 for codes
  int mantissa_bits;          ///< explicit ones; 0 for codes
  double largest;             ///< the largest finite value; for codes: before the scale
  double smallest_normal;     ///< the smallest positive normal value; for codes: the smallest positive one
  double smallest_subnormal;  ///< the smallest positive value; for codes: equals smallest_normal
  std::optional<at::ScalarType> dtype;  ///< of tensors that hold the values; unset for codes with scales
};

/// Returns every format, widest first.
/// Source: IEEE 754 (float64, float32, float16); NVIDIA's A100 whitepaper (TF32); Micikevicius et al. 2022,
///         arXiv:2209.05433 (FP8); Dettmers et al. 2023, arXiv:2305.14314, appendix E (NF4); bitsandbytes
///         (FP4).
c10::ArrayRef<FormatInfo> formats();

const FormatInfo& info(Format format);

/// Returns the format of a tensor's values, or of a complex tensor's parts; unset for integers, bools and
/// formats that are not in the table.
std::optional<Format> format_of(at::ScalarType dtype);

/// Whether a value has 16 bits in memory: float16 and bfloat16.
inline bool is_16_bit(Format format) { return format == Format::kFloat16 || format == Format::kBFloat16; }

}  // namespace mantissa
