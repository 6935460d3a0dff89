#pragma once

// Defines the bits of StochasticRound once for all code that computes them: loops over numbers and tensor
// operations. Each of them instantiates these templates with Ops, a struct of its own anonymous namespace,
// under the rules of element.h. They are constexpr, so that CUDA's device code can call them, too. Ops has these members:
//
//   Word, Constant              an unsigned 32-bit word, and the type of a constant operand
//   Bits                        the 32 bits of a float32, signed
//   multiply(a, b)              the high and the low word of a * b, as Product<Word>
//   choose(condition, a, b)     a where the condition holds, else b
//   at_most(a, b)               the smaller of a and b
//   right_shift(a, by)          arithmetic if a is signed
//   as_float(bits), truncate(x) reinterprets the bits as float32; rounds a float32 towards zero

#include <cstdint>

namespace mantissa::kernels {

template <class Word>
struct Product {
  Word high, low;
};

/// Four random 32-bit words of Philox4x32-10, or the 128-bit counter that they come from.
template <class Word>
struct PhiloxBlock {
  Word words[4];
};

template <class Ops>
constexpr PhiloxBlock<typename Ops::Word> philox(PhiloxBlock<typename Ops::Word> block, uint64_t seed) {
  using Constant = typename Ops::Constant;
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto a = Ops::multiply(block.words[0], Constant{0xD2511F53}),
               b = Ops::multiply(block.words[2], Constant{0xCD9E8D57});
    block = {
        {b.high ^ block.words[1] ^ Constant{key0}, b.low, a.high ^ block.words[3] ^ Constant{key1}, a.low}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return block;
}

/// A block holds eight draws: the low halves of its words, followed by their high halves.
constexpr int64_t kDrawsPerBlock = 8;

/// A 16-bit format, described through the bits of a float32 without its sign.
struct Format16 {
  int32_t smallest_normal;  ///< values below it have another spacing; 0 if none do
  int32_t too_large;        ///< values from here on become infinite
  int32_t bias, shift;      ///< (bits - bias) << shift is the result with 16 bits of fraction
  int32_t largest, infinity, quiet_nan;
  int32_t payload;  ///< the bits of a NaN that survive
};
constexpr Format16 kFormatBFloat16 = {0, 0x7f800000, 0, 0, 0x7f7f, 0x7f80, 0x7fc0, 0x007f0000};
constexpr Format16 kFormatFloat16 = {0x38800000, 0x47800000, 0x38000000, 3,
                                     0x7bff,     0x7c00,     0x7e00,     0x007fe000};

/// Returns the index of `magnitude` among the format's numbers, counted from zero, with 16 bits of fraction.
/// The fraction is 0 where the rounding is not random.
template <class Ops>
constexpr typename Ops::Bits place(const typename Ops::Bits& magnitude, const Format16& format) {
  using Bits = typename Ops::Bits;
  const int32_t scale = 1 << format.shift, nearest_overflows = format.largest << 16 | 0x8000;
  Bits result = (Ops::at_most(magnitude, format.too_large) - format.bias) * scale;
  if (format.smallest_normal != 0) {
    // The spacing of subnormals is uniform: their last place is 2^-24.
    const Bits subnormal =
        Ops::truncate(Ops::as_float(Ops::at_most(magnitude, format.smallest_normal)) * 0x1p40F);
    result = Ops::choose(magnitude < format.smallest_normal, subnormal, result);
  }
  result = Ops::choose(result < nearest_overflows, Ops::at_most(result, format.largest << 16),
                       format.infinity << 16);
  const Bits nan = (magnitude & format.payload) * scale | format.quiet_nan << 16;
  return Ops::choose(magnitude > 0x7f800000, nan, result);
}

/// Returns the 16 bits of the float32 `bits`, rounded up if adding the 16-bit number `draw` to the discarded
/// fraction carries.
template <class Ops>
constexpr typename Ops::Bits stochastically_rounded(const typename Ops::Bits& bits,
                                                    const typename Ops::Bits& draw, const Format16& format) {
  return Ops::right_shift(place<Ops>(bits & 0x7fffffff, format) + draw, 16) |
         (Ops::right_shift(bits, 16) & 0x8000);
}

}  // namespace mantissa::kernels
