#include "mantissa/optim/stochastic_round.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "mantissa/core/parallel_internal.h"
#include "mantissa/optim/stochastic_round_internal.h"

namespace mantissa {
namespace {

// Generator and rounding stand here once, for one number and for a tensor of them, so that both give the same
// bits; only these small functions are written for each. A tensor's 32-bit words lie in int64.
int32_t choose(bool condition, int32_t a, int32_t b) { return condition ? a : b; }
at::Tensor choose(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  return at::where(condition, a, b);
}
at::Tensor choose(const at::Tensor& condition, const at::Tensor& a, int32_t b) {
  return at::where(condition, a, b);
}
int32_t at_most(int32_t a, int32_t b) { return std::min(a, b); }
at::Tensor at_most(const at::Tensor& a, int32_t b) { return a.clamp_max(b); }
int32_t right_shift(int32_t a, int32_t by) { return a >> by; }
at::Tensor right_shift(const at::Tensor& a, int32_t by) { return a.bitwise_right_shift(by); }
float as_float(int32_t bits) { return std::bit_cast<float>(bits); }
at::Tensor as_float(const at::Tensor& bits) { return bits.view(at::kFloat); }
int32_t truncate(float value) { return static_cast<int32_t>(value); }
at::Tensor truncate(const at::Tensor& value) { return value.to(at::kInt); }

template <typename Word>
struct Product {
  Word high, low;
};
Product<uint32_t> multiply(uint32_t a, uint32_t b) {
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}
/// By 16-bit halves, so that nothing exceeds 63 bits.
Product<at::Tensor> multiply(const at::Tensor& a, int64_t b) {
  const at::Tensor low = (a & 0xffff) * b;
  const at::Tensor high = right_shift(a, 16) * b + right_shift(low, 16);
  return {right_shift(high, 16), (high & 0xffff) * 0x10000 + (low & 0xffff)};
}

/// Philox4x32-10: four random 32-bit words for each 128-bit counter.
template <typename Word>
std::array<Word, 4> philox(std::array<Word, 4> counter, uint64_t seed) {
  using Constant = std::conditional_t<std::is_same_v<Word, uint32_t>, uint32_t, int64_t>;
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product<Word> a = multiply(counter[0], Constant{0xD2511F53}),
                        b = multiply(counter[2], Constant{0xCD9E8D57});
    counter = {b.high ^ counter[1] ^ Constant{key0}, b.low, a.high ^ counter[3] ^ Constant{key1}, a.low};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// A 16-bit format, seen from the bits of a float32 without its sign.
struct Format {
  int32_t smallest_normal;  // smaller ones have another spacing; 0: none do
  int32_t too_large;        // this and more is infinite
  int32_t bias, shift;      // (bits - bias) << shift is the result with 16 bits of fraction
  int32_t largest, infinity, quiet_nan;
  int32_t payload;  // the bits of a NaN that survive
};
constexpr Format kBrain = {0, 0x7f800000, 0, 0, 0x7f7f, 0x7f80, 0x7fc0, 0x007f0000};
constexpr Format kHalf = {0x38800000, 0x47800000, 0x38000000, 3, 0x7bff, 0x7c00, 0x7e00, 0x007fe000};

/// `magnitude`'s place among the format's numbers, counted from zero, with 16 bits of fraction. Where nothing
/// is left to chance the fraction is 0.
template <typename Bits>
Bits place(const Bits& magnitude, const Format& format) {
  const int32_t scale = 1 << format.shift, nearest_overflows = format.largest << 16 | 0x8000;
  Bits result = (at_most(magnitude, format.too_large) - format.bias) * scale;
  if (format.smallest_normal != 0) {
    // Even there: the last place is 2^-24.
    const Bits subnormal = truncate(as_float(at_most(magnitude, format.smallest_normal)) * 0x1p40F);
    result = choose(magnitude < format.smallest_normal, subnormal, result);
  }
  result = choose(result < nearest_overflows, at_most(result, format.largest << 16), format.infinity << 16);
  const Bits nan = (magnitude & format.payload) * scale | format.quiet_nan << 16;
  return choose(magnitude > 0x7f800000, nan, result);
}

/// The 16 bits of the float32 `bits`, rounded up if the 16-bit number `draw` + the fraction cut off carries.
template <typename Bits>
Bits rounded(const Bits& bits, const Bits& draw, const Format& format) {
  return right_shift(place<Bits>(bits & 0x7fffffff, format) + draw, 16) | (right_shift(bits, 16) & 0x8000);
}

constexpr uint64_t kDrawsPerBlock = 8;  // 4 words of 2 draws
constexpr uint64_t kBlocks = 32;
constexpr uint64_t kDraws = kBlocks * kDrawsPerBlock;

/// Draws of kBlocks counters from `first_block` on. A block's low halves come before its high halves.
void fill(uint64_t first_block, uint64_t step, uint64_t seed, std::array<uint16_t, kDraws>& draws) {
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const uint64_t block = first_block + i;
    const auto words = philox<uint32_t>({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                         static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
                                        seed);
    for (uint64_t word = 0; word < 4; ++word) {
      draws[i * kDrawsPerBlock + word] = static_cast<uint16_t>(words[word]);
      draws[i * kDrawsPerBlock + word + 4] = static_cast<uint16_t>(words[word] >> 16);
    }
  }
}

template <Format kFormat>
void round_on_cpu(uint16_t* out, const float* in, int64_t elements, uint64_t seed, uint64_t step,
                  uint64_t offset) {
  at::parallel_for(0, elements, 1 << 14, [&](int64_t begin, int64_t end) {
    std::array<uint16_t, kDraws> draws{};
    for (int64_t done = begin; done < end;) {
      const uint64_t position = offset + static_cast<uint64_t>(done), skip = position % kDraws;
      fill((position - skip) / kDrawsPerBlock, step, seed, draws);
      const auto count = std::min(static_cast<int64_t>(kDraws - skip), end - done);
      for (int64_t i = 0; i < count; ++i) {
        out[done + i] = static_cast<uint16_t>(rounded(
            std::bit_cast<int32_t>(in[done + i]), int32_t{draws[skip + static_cast<uint64_t>(i)]}, kFormat));
      }
      done += count;
    }
  });
}

/// All of a tensor's memory as one row.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

}  // namespace

void stochastic_round_by_operations_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                     const at::Tensor& step, uint64_t offset) {
  const at::NoGradGuard no_grad;
  const uint64_t skip = offset % kDrawsPerBlock, first_block = offset / kDrawsPerBlock;
  const auto blocks =
      static_cast<int64_t>((skip + static_cast<uint64_t>(in.numel()) + kDrawsPerBlock - 1) / kDrawsPerBlock);
  const at::Tensor block =
      at::arange(blocks, in.options().dtype(at::kLong)) + static_cast<int64_t>(first_block);
  const auto low_word = [&](const at::Tensor& value) { return (value & 0xffffffff).expand_as(block); };
  const auto words = philox<at::Tensor>(
      {low_word(block), right_shift(block, 32), low_word(step), low_word(right_shift(step, 32))}, seed);
  std::vector<at::Tensor> draws;
  for (const at::Tensor& word : words) draws.push_back(word & 0xffff);
  for (const at::Tensor& word : words) draws.push_back(right_shift(word, 16));
  const at::Tensor draw =
      at::stack(draws, 1).flatten().narrow(0, static_cast<int64_t>(skip), in.numel()).to(at::kInt);
  const at::Tensor bits =
      rounded(flat(in).view(at::kInt), draw, out.scalar_type() == at::kHalf ? kHalf : kBrain);
  flat(out).view(at::kShort).copy_(bits);
}

namespace {

void check(const at::Tensor& out, const at::Tensor& in) {
  TORCH_CHECK_TYPE(in.scalar_type() == at::kFloat &&
                       (out.scalar_type() == at::kBFloat16 || out.scalar_type() == at::kHalf),
                   "stochastic_round_: rounds float32 to bfloat16 or float16; got ", in.scalar_type(), " to ",
                   out.scalar_type(), "; convert the input with to(at::kFloat)");
  TORCH_CHECK_VALUE(
      out.sizes() == in.sizes() && out.strides() == in.strides() && in.is_non_overlapping_and_dense() &&
          out.device() == in.device(),
      "stochastic_round_: needs two tensors of one shape and one memory layout without gaps on one "
      "device; got ",
      out.sizes(), " strides ", out.strides(), " on ", out.device(), " for ", in.sizes(), " strides ",
      in.strides(), " on ", in.device(), "; call contiguous() on both");
}

}  // namespace

const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed, uint64_t step,
                                    uint64_t offset) {
  check(out, in);
  if (!in.is_cpu()) {
    const at::Tensor on_device = at::full({}, static_cast<int64_t>(step), in.options().dtype(at::kLong));
    stochastic_round_by_operations_(out, in, seed, on_device, offset);
    return out;
  }
  auto* const to = static_cast<uint16_t*>(out.mutable_data_ptr());
  const auto* const from = in.const_data_ptr<float>();
  if (out.scalar_type() == at::kHalf) {
    round_on_cpu<kHalf>(to, from, in.numel(), seed, step, offset);
  } else {
    round_on_cpu<kBrain>(to, from, in.numel(), seed, step, offset);
  }
  out.unsafeGetTensorImpl()->bump_version();
  return out;
}

const at::Tensor& stochastic_round_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                    const at::Tensor& step, uint64_t offset) {
  check(out, in);
  TORCH_CHECK_VALUE(step.scalar_type() == at::kLong && step.dim() == 0 && step.device() == in.device(),
                    "stochastic_round_: the step must be a 0-dim int64 tensor on ", in.device(), "; got ",
                    step.toString(), " of shape ", step.sizes(), " on ", step.device());
  if (in.is_cpu())
    return stochastic_round_(out, in, seed, static_cast<uint64_t>(step.item<int64_t>()), offset);
  stochastic_round_by_operations_(out, in, seed, step, offset);
  return out;
}

}  // namespace mantissa
