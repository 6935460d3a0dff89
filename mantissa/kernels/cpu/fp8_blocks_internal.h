#pragma once

// The casts of blocks to 8 bits, and back from 8 and 4 bits, written once for all tiers: see fp8_internal.h, whose rules
// and `Build` they share.

#include <cstdint>
#include <type_traits>

#include "mantissa/kernels/cpu/fp8_internal.h"

namespace mantissa::kernels::cpu {

/// Calls f(width) with the width as a constant, for which a loop over a block is compiled.
template <class Build, class F>
void with_width(int64_t width, const F& f) {
  switch (width) {
    case 1:
      return f(std::integral_constant<int64_t, 1>{});
    case 16:
      return f(std::integral_constant<int64_t, 16>{});
    case 32:
      return f(std::integral_constant<int64_t, 32>{});
    default:
      return f(std::integral_constant<int64_t, 128>{});
  }
}

/// Calls f(begin, count) for parts of a row, each of which consists of whole blocks.
template <class Build, class F>
void for_each_part_of_row(int64_t cols, const F& f) {
  for (int64_t begin = 0; begin < cols; begin += kFp8Chunk)
    f(begin, cols - begin < kFp8Chunk ? cols - begin : kFp8Chunk);
}

/// Returns `count` values of a matrix from `at` on: float32 where it is, anything else converted into `buffer`.
template <class Build>
const float* values_at(Element element, const void* in, int64_t at, int64_t count, float* buffer) {
  if (element == Element::kFloat32) return static_cast<const float*>(in) + at;
  Build::widen(element, in, at, count, buffer);
  return buffer;
}

template <class Build, bool kKeepsNaN>
void find_in_columns(const float* values, int64_t count, int32_t* largest) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = bits_of<Build>(values[i]) & kMagnitudeBits;
    const int32_t counted = kKeepsNaN || magnitude <= kInfinityBits ? magnitude : 0;
    largest[i] = counted > largest[i] ? counted : largest[i];
  }
}

template <class Build>
void find_block_magnitudes_with(const FindBlockMagnitudes& problem) {
  float buffer[kFp8Chunk];
  for_each_part_of_row<Build>(problem.cols, [&](int64_t begin, int64_t count) {
    int32_t columns[kFp8Chunk] = {};
    for (int64_t row = 0; row < problem.rows; ++row) {
      const float* const values =
          values_at<Build>(problem.element, problem.in, row * problem.stride + begin, count, buffer);
      problem.keeps_nan ? find_in_columns<Build, true>(values, count, columns)
                        : find_in_columns<Build, false>(values, count, columns);
    }
    with_width<Build>(problem.width, [&](auto width) {
      float* const out = problem.largest + begin / width;
      for (int64_t block = 0; block < count / width; ++block) {
        int32_t largest = 0;
        for (int64_t i = 0; i < width; ++i) {
          const int32_t here = columns[block * width + i];
          largest = here > largest ? here : largest;
        }
        out[block] = float_of<Build>(largest);
      }
    });
  });
}

template <class Build, Fp8 kFormat>
void quantize_fp8_blocks_as(const QuantizeFp8Blocks& problem) {
  float buffer[kFp8Chunk];
  with_width<Build>(problem.width, [&](auto width) {
    for (int64_t row = 0; row < problem.rows; ++row)
      for_each_part_of_row<Build>(problem.cols, [&](int64_t begin, int64_t count) {
        const int64_t at = row * problem.stride + begin;
        const float* const values = values_at<Build>(problem.element, problem.in, at, count, buffer);
        uint8_t* const __restrict codes = problem.codes + at;
        for_each_column(
            width, count,
            problem.scales + begin / width, [&](int64_t i, float scale) __attribute__((always_inline)) {
              codes[i] = Fp8Format<Build, kFormat>::encode(values[i] * scale);
            });
      });
  });
}

template <class Build>
void quantize_fp8_blocks_with(const QuantizeFp8Blocks& problem) {
  problem.format == Fp8::kE4M3 ? quantize_fp8_blocks_as<Build, Fp8::kE4M3>(problem)
                               : quantize_fp8_blocks_as<Build, Fp8::kE5M2>(problem);
}

template <class Build>
struct E2M1Format {
  static float decode(uint8_t code) {
    const int32_t magnitude = code & 7, normal = (magnitude << 22) + (126 << 23);
    const int32_t subnormal = bits_of<Build>(static_cast<float>(magnitude) * 0.5F);
    const int32_t bits = choose<Build>(magnitude < 2, subnormal, normal);
    return float_of<Build>(bits | static_cast<int32_t>(static_cast<uint32_t>(code & 8) << 28));
  }
};

/// Writes a number, and collects in `lost` the bits that the type of the result lacks.
template <class Build>
struct ToFloat32 {
  using Storage = float;
  static void store(float value, Storage& to, int32_t&) { to = value; }
};
template <class Build>
struct ToBFloat16 {
  using Storage = uint16_t;
  static void store(float value, Storage& to, int32_t& lost) {
    const int32_t bits = bits_of<Build>(value), exponent = bits & kInfinityBits;
    // Subnormal numbers count as lost, because some products take them for 0.
    lost |= (bits & 0xffff) | choose<Build>(exponent == 0, bits & kMagnitudeBits, 0);
    to = static_cast<uint16_t>(static_cast<uint32_t>(bits) >> 16);
  }
};

/// Restores a part of a row from one code in each byte, and returns the bits that are lost.
template <class Build, class Format, class Out, class Width>
int32_t restore_part(const uint8_t* __restrict codes, int64_t count, const float* scales, Width width,
                     typename Out::Storage* __restrict out) {
  int32_t lost = 0;
  for_each_column(
      width, count, scales, [&](int64_t i, float scale) __attribute__((always_inline)) {
        Out::store(Format::decode(codes[i]) * scale, out[i], lost);
      });
  return lost;
}

template <class Build, class Format, class Out>
bool restore_blocks_as(const RestoreBlocks& problem) {
  constexpr bool kIsE2M1 = std::is_same_v<Format, E2M1Format<Build>>;
  int32_t lost = 0;
  with_width<Build>(problem.width, [&](auto width) {
    for (int64_t row = 0; row < problem.rows; ++row)
      for_each_part_of_row<Build>(problem.cols, [&](int64_t begin, int64_t count) {
        const int64_t at = row * problem.stride + begin;
        const uint8_t* codes = problem.codes + (kIsE2M1 ? at / 2 : at);
        uint8_t halves[kFp8Chunk];
        if constexpr (kIsE2M1) {
          for (int64_t i = 0; i < count / 2; ++i) {
            halves[2 * i] = codes[i] & 15;
            halves[2 * i + 1] = codes[i] >> 4;
          }
          codes = halves;
        }
        lost |= restore_part<Build, Format, Out>(codes, count, problem.scales + begin / width, width,
                                                 static_cast<typename Out::Storage*>(problem.out) + at);
      });
  });
  return lost == 0;
}

template <class Build, class Format>
bool restore_blocks_from(const RestoreBlocks& problem) {
  return problem.out_element == Element::kFloat32
             ? restore_blocks_as<Build, Format, ToFloat32<Build>>(problem)
             : restore_blocks_as<Build, Format, ToBFloat16<Build>>(problem);
}

template <class Build>
bool restore_blocks_with(const RestoreBlocks& problem) {
  switch (problem.format) {
    case CodeFormat::kE4M3:
      return restore_blocks_from<Build, Fp8Format<Build, Fp8::kE4M3>>(problem);
    case CodeFormat::kE5M2:
      return restore_blocks_from<Build, Fp8Format<Build, Fp8::kE5M2>>(problem);
    default:
      return restore_blocks_from<Build, E2M1Format<Build>>(problem);
  }
}

}  // namespace mantissa::kernels::cpu
