#include "mantissa/core/formats.h"

#include <array>

#include <c10/util/Exception.h>

namespace mantissa {
namespace {

constexpr double two_to(int exponent) {
  double power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

/// A format built as in IEEE 754: the largest exponent is reserved for inf and nan.
constexpr FormatInfo ieee(Format format, std::string_view name, int bits, int exponent_bits,
                          int mantissa_bits, at::ScalarType dtype) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double largest = two_to(bias) * (2 - two_to(-mantissa_bits)), normal = two_to(1 - bias);
  return {format, name, bits, exponent_bits, mantissa_bits, largest, normal, normal * two_to(-mantissa_bits),
          dtype};
}

/// Codes, whose value is multiplied by a scale.
constexpr FormatInfo codes(Format format, std::string_view name, int bits, double largest, double smallest) {
  return {format, name, bits, 0, 0, largest, smallest, smallest, std::nullopt};
}

constexpr std::array kFormats{
    ieee(Format::kFloat64, "float64", 64, 11, 52, at::kDouble),
    ieee(Format::kFloat32, "float32", 32, 8, 23, at::kFloat),
    ieee(Format::kTF32, "tf32", 32, 8, 10, at::kFloat),
    ieee(Format::kBFloat16, "bfloat16", 16, 8, 7, at::kBFloat16),
    ieee(Format::kFloat16, "float16", 16, 5, 10, at::kHalf),
    // It has no inf: all but one of the mantissas of the largest exponent are numbers.
    FormatInfo{Format::kFloat8E4M3, "float8_e4m3fn", 8, 4, 3, 448, two_to(-6), two_to(-9),
               at::kFloat8_e4m3fn},
    ieee(Format::kFloat8E5M2, "float8_e5m2", 8, 5, 2, at::kFloat8_e5m2),
    codes(Format::kInt8, "int8", 8, 127, 1),
    codes(Format::kNF4, "nf4", 4, 1, 0.07958029955625534),
    codes(Format::kFP4, "fp4", 4, 1, 0.0052083334885537624),
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < kFormats.size(); ++i)
    if (static_cast<size_t>(kFormats[i].format) != i) return false;
  return true;
}
static_assert(is_in_order(), "info() takes a format's number for its row");

}  // namespace

c10::ArrayRef<FormatInfo> formats() { return kFormats; }

const FormatInfo& info(Format format) { return kFormats.at(static_cast<size_t>(format)); }

std::optional<Format> format_of(at::ScalarType dtype) {
  dtype = c10::toRealValueType(dtype);
  for (const FormatInfo& row : kFormats)
    if (row.dtype == dtype && row.format != Format::kTF32) return row.format;
  return std::nullopt;
}

}  // namespace mantissa
