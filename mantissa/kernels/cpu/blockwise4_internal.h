#pragma once

// States with codes of 4 bits, for all tiers. This header follows the rules of elements_internal.h; what has no
// V or Build is evaluated by the compiler only. V has these members in addition:
//
//   nibbles(from)                    integers: the codes of kLanes elements, the high bits of a byte first
//   look_up_16(table, codes)         the values of a table of 16
//   to_float(i), truncate(x)         of integers and to integers
//   doubled(i, x, bound)             integers: 2 i, plus 1 where x is not below the bound
//   pick(table, i)                   values of a table of eight floats
//   store_nibbles(to, codes)         four vectors of codes

#include <cstdint>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/blockwise.h"
#include "mantissa/kernels/cpu/blockwise_codes_internal.h"

namespace mantissa::kernels::cpu {

inline constexpr float kLeastScale4 = 1e-12F;

/// The signed map's thresholds as a binary tree: level l has the 2^l that decide bit 3 - l of the code.
struct Middles4 {
  alignas(32) float level[4][8];
};

consteval Middles4 middles4() {
  Middles4 middles = {};
  for (int level = 0; level < 4; ++level)
    for (int i = 0; i < 1 << level; ++i)
      middles.level[level][i] = least_of_dynamic4_code((2 * i + 1) * (8 >> level));
  return middles;
}

inline constexpr Middles4 kMiddles4 = middles4();

/// Returns the code of a state that is divided by its block's absmax. NaN has code 0.
template <class Build>
int code4_of(DynamicMap map, float x) {
  int code = 0;
  if (map == DynamicMap::kSigned) {
    for (const auto& level : kMiddles4.level) code = 2 * code + (x >= level[code]);
    return code;
  }
  const float rank = x * 16 - 0.5F;
  return rank >= 15 ? 15 : rank > 0 ? static_cast<int>(rank) : 0;
}

/// Returns the scale of a block with this largest magnitude.
template <class Build>
float scale4_of(float largest) {
  return largest < kLeastScale4 ? kLeastScale4 : largest > kLargestFloat ? kLargestFloat : largest;
}

/// Returns the values of kLanes codes, of which the first is in the high bits of codes[0].
template <class V, DynamicMap kMap>
[[gnu::always_inline]] inline typename V::Float decode4(const uint8_t* codes, typename V::Float scale) {
  if constexpr (kMap == DynamicMap::kSigned)
    return V::mul(V::look_up_16(kDynamic4Signed, V::nibbles(codes)), scale);
  const auto sixteenths = V::add(V::to_float(V::nibbles(codes)), V::set(1));
  return V::mul(V::mul(sixteenths, V::set(0.0625F)), scale);
}

template <class V, DynamicMap kMap>
[[gnu::always_inline]] inline typename V::Int encode4(typename V::Float x) {
  if constexpr (kMap == DynamicMap::kSigned) {
    auto code = V::doubled(V::truncate(V::zero()), x, V::set(kMiddles4.level[0][0]));
#pragma GCC unroll 3
    for (int level = 1; level < 4; ++level) code = V::doubled(code, x, V::pick(kMiddles4.level[level], code));
    return code;
  }
  // V::max makes a NaN 0.
  const auto rank = V::sub(V::mul(x, V::set(16)), V::set(0.5F));
  return V::truncate(V::min(V::max(rank, V::zero()), V::set(15)));
}

/// Two blocks of a state with codes of 4 bits while they are updated, or one at the end of a parameter. The new
/// values are kept until all of them are known.
template <class V, DynamicMap kMap>
struct BlockOf4BitState {
  using Float = typename V::Float;

  const UpdateState& state;
  int64_t block, count;
  const uint8_t* codes;
  float* values;
  Float scale, next_scale, largest = V::zero(), next_largest = V::zero();
  float absmax[2] = {};

  [[gnu::always_inline]] inline BlockOf4BitState(const UpdateState& its_state, int64_t its_block,
                                                 int64_t its_count, CopyOfState& copy)
      : state(its_state),
        block(its_block),
        count(its_count),
        codes(state.codes + block * kStateBlock / 2),
        values(copy.values),
        scale(V::set(state.absmax[2 * block])),
        next_scale(V::set(count > kState4Block ? state.absmax[2 * block + 1] : 0)) {
    if (count > kState4Block) return;
    __builtin_memcpy(copy.codes, codes, kState4Block / 2);
    __builtin_memset(copy.codes + kState4Block / 2, 0, kState4Block / 2);
    codes = copy.codes;
  }
  [[gnu::always_inline]] inline Float load(int64_t i) const {
    return decode4<V, kMap>(codes + i / 2, i < kState4Block ? scale : next_scale);
  }
  [[gnu::always_inline]] inline void store(int64_t i, Float value) {
    V::store(values + i, value);
    const Float size = kMap == DynamicMap::kSigned ? V::abs(value) : value;
    if (i < kState4Block) {
      largest = V::max(size, largest);
    } else {
      next_largest = V::max(size, next_largest);
    }
  }
  [[gnu::always_inline]] inline void close() {
    absmax[0] = scale4_of<V>(V::largest(largest));
    absmax[1] = scale4_of<V>(V::largest(next_largest));
  }
  template <bool kIsFinite, class Also>
  [[gnu::always_inline]] inline void finish(const Also& also) const {
    finish_one(0, also);
    if (count > kState4Block) return finish_one(1, also);
    for (int64_t i = kState4Block; i < kStateBlock; i += V::kLanes) also(i);
  }
  template <class Also>
  [[gnu::always_inline]] inline void finish_one(int64_t half, const Also& also) const {
    state.absmax[2 * block + half] = absmax[half];
    const auto factor = V::set(1 / absmax[half]);
    uint8_t* const to = state.codes + block * kStateBlock / 2;
    const int64_t begin = half * kState4Block;
    for (int64_t i = begin; i < begin + kState4Block; i += 4 * V::kLanes) {
      typename V::Int its_codes[4];
#pragma GCC unroll 4
      for (int64_t k = 0; k < 4; ++k) {
        its_codes[k] = encode4<V, kMap>(V::mul(V::load(values + i + k * V::kLanes), factor));
        also(i + k * V::kLanes);
      }
      V::store_nibbles(to + i / 2, its_codes);
    }
  }
};

}  // namespace mantissa::kernels::cpu
