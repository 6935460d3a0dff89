#pragma once

// 16-bit numbers by integer arithmetic only. The conversions of all tiers are compared with these.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels::cpu::generic {
namespace {

float from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t to_bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float widen_bf16(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }

uint16_t narrow_bf16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const uint32_t bits = to_bits(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float widen_fp16(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16, exponent = (half >> 10) & 31U, mantissa = half & 1023U;
  if (exponent == 0) return from_bits(sign | to_bits(static_cast<float>(mantissa) * 0x1p-24F));
  if (exponent == 31) return from_bits(sign | 0x7f800000U | (mantissa << 13));
  return from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t narrow_fp16(float value) {
  const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffU;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  if (magnitude > 0x7f800000U) return sign | 0x7e00;
  if (magnitude >= to_bits(65536)) return sign | 0x7c00;
  // Below 2^-14, adding 0.5, whose last place is 2^-24, makes the hardware round at fp16's last place.
  if (magnitude < to_bits(0x1p-14F))
    return sign | static_cast<uint16_t>(to_bits(from_bits(magnitude) + 0.5F) - to_bits(0.5F));
  return sign | static_cast<uint16_t>((magnitude + 0xfff + ((magnitude >> 13) & 1) - (112U << 23)) >> 13);
}

inline float load(Element element, const void* data, int64_t index) {
  switch (element) {
    case Element::kBFloat16:
      return widen_bf16(static_cast<const uint16_t*>(data)[index]);
    case Element::kFloat16:
      return widen_fp16(static_cast<const uint16_t*>(data)[index]);
    case Element::kFloat32:
      break;
  }
  return static_cast<const float*>(data)[index];
}

inline void store(Element element, void* data, int64_t index, float value) {
  switch (element) {
    case Element::kBFloat16:
      static_cast<uint16_t*>(data)[index] = narrow_bf16(value);
      return;
    case Element::kFloat16:
      static_cast<uint16_t*>(data)[index] = narrow_fp16(value);
      return;
    case Element::kFloat32:
      static_cast<float*>(data)[index] = value;
  }
}

/// Like std::min.
template <typename T>
T least(T a, T b) {
  return a < b ? a : b;
}

}  // namespace
}  // namespace mantissa::kernels::cpu::generic
