#pragma once

// The casts to 8 and 4 bits, written once for all tiers under the rules of element.h: integer loops without
// branches, which the compiler vectorizes with the tier's instructions. `Build` is a type of the tier's source
// with one function:
//
//   widen(element, in, begin, count, out)   converts 16-bit values from `begin` on to float32

#include <cstdint>
#include <type_traits>

#include "mantissa/kernels/cpu/fp8_kernel.h"
#include "mantissa/kernels/stochastic_round_internal.h"

namespace mantissa::kernels::cpu {

template <class Build>
constexpr int32_t bits_of(float value) {
  return __builtin_bit_cast(int32_t, value);
}

template <class Build>
constexpr float float_of(int32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Selects by bits: GCC 12 would compute only one of two sums behind a branch, and then not vectorize the loop.
template <class Build>
constexpr int32_t choose(bool condition, int32_t a, int32_t b) {
  const int32_t mask = -static_cast<int32_t>(condition);
  return (a & mask) | (b & ~mask);
}

/// So many values are widened at a time.
constexpr int64_t kFp8Chunk = 256;
constexpr int32_t kInfinityBits = 0x7f800000, kMagnitudeBits = 0x7fffffff;

/// A format of 8 bits, described through the bits of a float32 without its sign.
template <class Build, Fp8 kFormat>
struct Fp8Format {
  static constexpr bool kHasInfinity = kFormat == Fp8::kE5M2;
  static constexpr int32_t kMantissa = kHasInfinity ? 2 : 3, kBias = kHasInfinity ? 15 : 7;
  static constexpr int32_t kShift = 23 - kMantissa, kRebias = (127 - kBias) << 23;
  static constexpr float kLargest = kHasInfinity ? 57344.0F : 448.0F;
  static constexpr float kSmallestNormal = kHasInfinity ? 0x1p-14F : 0x1p-6F;
  /// The smallest number, and the float32 whose last place it is.
  static constexpr float kSmallest = kHasInfinity ? 0x1p-16F : 0x1p-9F;
  static constexpr float kRounder = kHasInfinity ? 0x1p7F : 0x1p14F;

  static uint8_t encode(float value) {
    const int32_t bits = bits_of<Build>(value), magnitude = bits & kMagnitudeBits;
    const int32_t most = bits_of<Build>(kLargest), in_range = magnitude < most ? magnitude : most;
    const int32_t to_even = (1 << (kShift - 1)) - 1 + ((in_range >> kShift) & 1);
    const int32_t normal = (in_range - kRebias + to_even) >> kShift;
    // The addition rounds at the last place of the format's subnormal numbers.
    const int32_t subnormal = bits_of<Build>(float_of<Build>(in_range) + kRounder) - bits_of<Build>(kRounder);
    const int32_t number = choose<Build>(in_range < bits_of<Build>(kSmallestNormal), subnormal, normal);
    const int32_t code = choose<Build>(magnitude > kInfinityBits, 0x7f, number);
    return static_cast<uint8_t>(code | ((bits >> 24) & 0x80));
  }

  static float decode(uint8_t code) {
    const int32_t magnitude = code & 0x7f;
    // Not a float32 multiplied by a power of two, because its subnormal bits may be flushed to zero.
    const int32_t subnormal = bits_of<Build>(static_cast<float>(magnitude) * kSmallest);
    const int32_t normal = (magnitude << kShift) + kRebias;
    const int32_t number = choose<Build>(magnitude < 1 << kMantissa, subnormal, normal);
    const int32_t first_special = kHasInfinity ? 0x7c : 0x7f;
    const int32_t special = kHasInfinity ? kInfinityBits | (magnitude & 3) << 21 : 0x7fc00000;
    const int32_t bits = choose<Build>(magnitude >= first_special, special, number);
    return float_of<Build>(bits | static_cast<int32_t>(static_cast<uint32_t>(code & 0x80) << 24));
  }
};

/// Calls f(values, begin, count) with float32 values, chunk by chunk.
template <class Build, class F>
void for_each_chunk(Element element, const void* in, int64_t count, const F& f) {
  if (element == Element::kFloat32) return f(static_cast<const float*>(in), 0, count);
  float values[kFp8Chunk];
  for (int64_t begin = 0; begin < count; begin += kFp8Chunk) {
    const int64_t here = count - begin < kFp8Chunk ? count - begin : kFp8Chunk;
    Build::widen(element, in, begin, here, values);
    f(values, begin, here);
  }
}

/// Calls f(i, number) for each of `count` columns, at most kFp8Chunk, with the number of its block.
template <class Width, class F>
[[gnu::always_inline]] inline void for_each_column(Width width, int64_t count, const float* numbers,
                                                   const F& f) {
  if constexpr (width <= 16) {
    // GCC 12 unrolls a loop over 16 columns before it could vectorize it, and then does not.
    float of_columns[kFp8Chunk];
    if constexpr (width > 1) {
      for (int64_t i = 0; i < count; i += width)
        for (int64_t j = 0; j < width; ++j) of_columns[i + j] = numbers[i / width];
      numbers = of_columns;
    }
    for (int64_t i = 0; i < count; ++i) f(i, numbers[i]);
  } else {
    for (int64_t block = 0; block < count / width; ++block) {
      const float number = numbers[block];
      for (int64_t i = block * width; i < (block + 1) * width; ++i) f(i, number);
    }
  }
}

/// The largest bits of a number and of all values, where NaN is larger than any number.
template <class Build>
struct LargestBits {
  int32_t number = 0, any = 0;

  Magnitudes found() const { return {float_of<Build>(number), any > kInfinityBits}; }
};

template <class Build>
void find_in(const float* values, int64_t count, LargestBits<Build>& largest) {
  int32_t number = largest.number, any = largest.any;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = bits_of<Build>(values[i]) & kMagnitudeBits;
    const int32_t counted = magnitude > kInfinityBits ? 0 : magnitude;
    number = counted > number ? counted : number;
    any = magnitude > any ? magnitude : any;
  }
  largest = {number, any};
}

template <class Build>
Magnitudes find_magnitudes_with(const FindMagnitudes& problem) {
  LargestBits<Build> largest;
  for_each_chunk<Build>(
      problem.element, problem.in, problem.count,
      [&](const float* values, int64_t, int64_t count) { find_in<Build>(values, count, largest); });
  return largest.found();
}

template <class Build, Fp8 kFormat>
Magnitudes quantize_fp8_as(const QuantizeFp8& problem) {
  LargestBits<Build> largest;
  for_each_chunk<Build>(problem.element, problem.in, problem.count,
                        [&](const float* values, int64_t begin, int64_t count) {
                          uint8_t* const __restrict codes = problem.codes + begin;
                          const float scale = problem.scale;
                          // The second loop finds its values in the cache.
                          constexpr int64_t kPart = 1024;
                          for (int64_t part = 0; part < count; part += kPart) {
                            const int64_t end = count - part < kPart ? count : part + kPart;
                            find_in<Build>(values + part, end - part, largest);
                            for (int64_t i = part; i < end; ++i)
                              codes[i] = Fp8Format<Build, kFormat>::encode(values[i] * scale);
                          }
                        });
  return largest.found();
}

template <class Build>
Magnitudes quantize_fp8_with(const QuantizeFp8& problem) {
  return problem.format == Fp8::kE4M3 ? quantize_fp8_as<Build, Fp8::kE4M3>(problem)
                                      : quantize_fp8_as<Build, Fp8::kE5M2>(problem);
}

template <class Build, Fp8 kFormat>
void dequantize_fp8_as(const DequantizeFp8& problem) {
  const uint8_t* const __restrict codes = problem.codes;
  float* const __restrict out = problem.out;
  const float scale_inv = problem.scale_inv;
  for (int64_t i = 0; i < problem.count; ++i)
    out[i] = Fp8Format<Build, kFormat>::decode(codes[i]) * scale_inv;
}

template <class Build>
void dequantize_fp8_with(const DequantizeFp8& problem) {
  problem.format == Fp8::kE4M3 ? dequantize_fp8_as<Build, Fp8::kE4M3>(problem)
                               : dequantize_fp8_as<Build, Fp8::kE5M2>(problem);
}

/// For philox().
template <class Build>
struct Fp8Draws {
  using Word = uint32_t;
  using Constant = uint32_t;

  static Product<Word> multiply(Word a, Word b) {
    const uint64_t product = uint64_t{a} * b;
    return {static_cast<Word>(product >> 32), static_cast<Word>(product)};
  }
};

/// Sets the draws of `count` values, a multiple of 16, from draw `offset` on.
template <class Build>
void fill_draws(const QuantizeE2M1& problem, uint64_t offset, int64_t count, int32_t* draws) {
  const auto stream = static_cast<uint64_t>(problem.stream);
  for (int64_t i = 0; i < count / kDrawsPerBlock; ++i) {
    const uint64_t block = offset / kDrawsPerBlock + static_cast<uint64_t>(i);
    const auto random =
        philox<Fp8Draws<Build>>({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                  static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
                                problem.seed);
    for (int64_t word = 0; word < 4; ++word) {
      draws[i * kDrawsPerBlock + word] = static_cast<int32_t>(random.words[word] & 0xffff);
      draws[i * kDrawsPerBlock + word + 4] = static_cast<int32_t>(random.words[word] >> 16);
    }
  }
}

/// A magnitude among those of E2M1: the even code at or below it, and the rest in units of the codes' distance.
template <class Build>
struct E2M1Place {
  int32_t code;
  float rest;

  /// `magnitude` is at most 6. No subtraction here rounds.
  static E2M1Place of(float magnitude) {
    const int32_t bits = bits_of<Build>(magnitude);
    const bool below_2 = bits < bits_of<Build>(2.0F), below_4 = bits < bits_of<Build>(4.0F);
    const float low = magnitude * 2, middle = magnitude - 2, high = (magnitude - 4) * 0.5F;
    const int32_t above = choose<Build>(below_4, bits_of<Build>(middle), bits_of<Build>(high));
    const int32_t even = choose<Build>(below_4, 4, 6);
    return {choose<Build>(below_2, 0, even),
            float_of<Build>(choose<Build>(below_2, bits_of<Build>(low), above))};
  }
};

/// Returns the code with the value's sign. `draw` is only used with stochastic rounding.
template <class Build, bool kStochastic>
int32_t encode_e2m1(float value, int32_t draw) {
  const int32_t bits = bits_of<Build>(value), magnitude = bits & kMagnitudeBits;
  const int32_t most = bits_of<Build>(6.0F), in_range = magnitude < most ? magnitude : most;
  const auto [code, rest] = E2M1Place<Build>::of(float_of<Build>(in_range));
  int32_t rounded = 0;
  if constexpr (kStochastic) {
    rounded = (static_cast<int32_t>(rest * 0x1p16F) + draw) >> 16;
  } else {
    constexpr float kRounder = 0x1p23F;  // its last place is 1
    rounded = bits_of<Build>(rest + kRounder) - bits_of<Build>(kRounder);
  }
  const int32_t number = (code + rounded) | ((bits >> 28) & 8);
  return choose<Build>(magnitude > kInfinityBits, 0, number);
}

template <class Build, bool kStochastic, class Width>
void quantize_e2m1_as(const QuantizeE2M1& problem, Width width) {
  int32_t draws[kFp8Chunk] = {}, numbers[kFp8Chunk];
  const auto chunk = [&](const float* values, int64_t begin, int64_t count) {
    if constexpr (kStochastic)
      fill_draws<Build>(problem, problem.offset + static_cast<uint64_t>(begin), count, draws);
    for_each_column(
        width, count,
        problem.factors + begin / width, [&](int64_t i, float factor) __attribute__((always_inline)) {
          // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): widen() has filled it
          numbers[i] = encode_e2m1<Build, kStochastic>(values[i] * factor, draws[i]);
        });
    uint8_t* const __restrict codes = problem.codes + begin / 2;
    for (int64_t i = 0; i < count / 2; ++i)
      codes[i] = static_cast<uint8_t>(numbers[2 * i] | numbers[2 * i + 1] << 4);
  };
  for_each_chunk<Build>(
      problem.element, problem.in, problem.count, [&](const float* values, int64_t begin, int64_t count) {
        for (int64_t part = 0; part < count; part += kFp8Chunk)
          chunk(values + part, begin + part, count - part < kFp8Chunk ? count - part : kFp8Chunk);
      });
}

template <class Build, bool kStochastic>
void quantize_e2m1_rounded(const QuantizeE2M1& problem) {
  problem.width == 1
      ? quantize_e2m1_as<Build, kStochastic>(problem, std::integral_constant<int64_t, 1>{})
      : quantize_e2m1_as<Build, kStochastic>(problem, std::integral_constant<int64_t, kE2M1Block>{});
}

template <class Build>
void quantize_e2m1_with(const QuantizeE2M1& problem) {
  problem.rounds_stochastically ? quantize_e2m1_rounded<Build, true>(problem)
                                : quantize_e2m1_rounded<Build, false>(problem);
}

}  // namespace mantissa::kernels::cpu
