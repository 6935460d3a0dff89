#include <bit>

#include "mantissa/kernels/cpu/stochastic_round_kernel.h"
#include "mantissa/kernels/stochastic_round_internal.h"

namespace mantissa::kernels::cpu::generic {
namespace {

struct Numbers {
  using Word = uint32_t;
  using Constant = uint32_t;
  using Bits = int32_t;

  static Product<Word> multiply(Word a, Word b) {
    const uint64_t product = uint64_t{a} * b;
    return {static_cast<Word>(product >> 32), static_cast<Word>(product)};
  }
  /// Selects by bits, because GCC 12 does not vectorize the loop over numbers if it has a branch.
  static Bits choose(bool condition, Bits a, Bits b) {
    const Bits mask = -static_cast<Bits>(condition);
    return (a & mask) | (b & ~mask);
  }
  static Bits at_most(Bits a, Bits b) { return a < b ? a : b; }
  static Bits right_shift(Bits a, int32_t by) { return a >> by; }
  static float as_float(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits truncate(float value) { return static_cast<Bits>(value); }
};

constexpr uint64_t kBlockDraws = kDrawsPerBlock, kBlocks = 32, kDraws = kBlocks * kBlockDraws;

/// Fills `draws` from kBlocks counters, beginning at `first_block`.
void fill(uint64_t first_block, uint64_t step, uint64_t seed, uint16_t* draws) {
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const uint64_t block = first_block + i;
    const auto random = philox<Numbers>({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                          static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)}},
                                        seed);
    for (uint64_t word = 0; word < 4; ++word) {
      draws[i * kBlockDraws + word] = static_cast<uint16_t>(random.words[word]);
      draws[i * kBlockDraws + word + 4] = static_cast<uint16_t>(random.words[word] >> 16);
    }
  }
}

template <Format16 kFormat>
void round(const StochasticRound& problem, int64_t begin, int64_t end) {
  const float* const in = problem.in;
  auto* const out = static_cast<uint16_t*>(problem.out);
  const auto step = static_cast<uint64_t>(*problem.step);
  uint16_t draws[kDraws] = {};
  for (int64_t done = begin; done < end;) {
    const uint64_t position = problem.offset + static_cast<uint64_t>(done), skip = position % kDraws;
    fill((position - skip) / kBlockDraws, step, problem.seed, draws);
    const auto left = end - done, here = static_cast<int64_t>(kDraws - skip);
    const int64_t count = left < here ? left : here;
    for (int64_t i = 0; i < count; ++i) {
      out[done + i] = static_cast<uint16_t>(stochastically_rounded<Numbers>(
          std::bit_cast<int32_t>(in[done + i]), int32_t{draws[skip + static_cast<uint64_t>(i)]}, kFormat));
    }
    done += count;
  }
}

}  // namespace

void stochastic_round(const StochasticRound& problem, int64_t begin, int64_t end) {
  if (problem.element == Element::kFloat16) return round<kFormatFloat16>(problem, begin, end);
  round<kFormatBFloat16>(problem, begin, end);
}

}  // namespace mantissa::kernels::cpu::generic
