#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/signbit.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "mantissa/fp8/operators_internal.h"
#include "mantissa/kernels/fp8.h"
#include "mantissa/kernels/stochastic_round_internal.h"

namespace mantissa::fp8::operators {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

/// Implements philox() with int64 tensors, which hold the 32-bit words.
struct Words {
  using Word = at::Tensor;
  using Constant = int64_t;

  /// Multiplies by 16-bit halves, so that nothing exceeds 63 bits.
  static kernels::Product<Word> multiply(const Word& a, int64_t b) {
    const Word low = (a & 0xffff) * b;
    const Word high = a.bitwise_right_shift(16) * b + low.bitwise_right_shift(16);
    return {high.bitwise_right_shift(16), (high & 0xffff) * 0x10000 + (low & 0xffff)};
  }
};

/// Returns the random numbers of blocks `first` to `first + count`, each word of them as int64 [count].
kernels::PhiloxBlock<at::Tensor> random_blocks(uint64_t seed, int64_t stream, int64_t first, int64_t count,
                                               const at::Tensor& like) {
  const at::Tensor block = at::arange(count, like.options().dtype(at::kLong)) + first;
  const auto word = [&](int64_t value) { return at::full_like(block, value & 0xffffffff); };
  return kernels::philox<Words>(
      {{block & 0xffffffff, block.bitwise_right_shift(32), word(stream), word(stream >> 32)}}, seed);
}

/// Returns the draws of `count` values, int32 [count]. `count` is a multiple of 16.
at::Tensor draws_of(const NVFP4Draws& draws, int64_t count, const at::Tensor& like) {
  const auto random =
      random_blocks(draws.seed, draws.stream, static_cast<int64_t>(draws.offset / kernels::kDrawsPerBlock),
                    count / kernels::kDrawsPerBlock, like);
  std::vector<at::Tensor> halves;
  for (const at::Tensor& each : random.words) halves.push_back(each & 0xffff);
  for (const at::Tensor& each : random.words) halves.push_back(each.bitwise_right_shift(16));
  return at::stack(halves, 1).flatten().to(at::kInt);
}

/// Returns the E2M1 codes of float32 values, as int32. `draws` is undefined for rounding to nearest.
at::Tensor encode_e2m1(const at::Tensor& values, const at::Tensor& draws) {
  const at::Tensor magnitude = values.abs().clamp_max(kLargestCode);
  const at::Tensor below_2 = magnitude < 2, below_4 = magnitude < 4;
  // The even code at or below the magnitude, and the rest in units of the codes' distance. Nothing here rounds.
  const at::Tensor code = at::where(below_2, 0, at::where(below_4, 4, 6)).to(at::kInt);
  const at::Tensor rest =
      at::where(below_2, magnitude * 2, at::where(below_4, magnitude - 2, (magnitude - 4) * 0.5));
  const at::Tensor rounded = draws.defined() ? ((rest * 65536.0).to(at::kInt) + draws).bitwise_right_shift(16)
                                             : rest.round().to(at::kInt);
  const at::Tensor sign = at::signbit(values).to(at::kInt) * 8;
  return at::where(values.isnan(), 0, code + rounded + sign);
}

/// Returns the values of E2M1 codes, as kE2M1Values has them.
at::Tensor decode_e2m1(const at::Tensor& codes) {
  const at::Tensor code = (codes & 7).to(at::kFloat);
  const at::Tensor magnitude = at::where(code < 4, code * 0.5, at::where(code < 6, code - 2, (code - 4) * 2));
  return magnitude * at::where(codes < 8, 1.0F, -1.0F);
}

/// Returns what the values of blocks with these scales are multiplied by; 0 for codes of 0.
at::Tensor factors_of(const at::Tensor& block_scale, const at::Tensor& scale) {
  const at::Tensor value = block_scale.to(at::kFloat);
  const at::Tensor factor = (scale / value).clamp_max(kLargestFloat);
  return at::where((value == 0).logical_or(value.isnan()), 0.0F, factor);
}

constexpr int64_t kSize = 16;  // of the Hadamard matrix

/// Returns the signs on the device of `like`. They travel as one number, which the host need not wait for.
at::Tensor signs_of(at::ArrayRef<float> signs, const at::Tensor& like) {
  int64_t negative = 0;
  for (size_t i = 0; i < signs.size(); ++i) negative |= int64_t{signs[i] < 0} << i;
  const at::Tensor place = at::arange(kSize, like.options().dtype(at::kLong));
  return 1.0F - (at::bitwise_right_shift(negative, place) & 1).to(at::kFloat) * 2;
}

/// Multiplies dimension `dim`, which has 16 values, by H, with the sums in the order of the CPU's.
at::Tensor times_h(at::Tensor values, int64_t dim) {
  for (int64_t half = 1; half < kSize; half *= 2) {
    const at::Tensor pairs = values.unflatten(dim, {kSize / (2 * half), 2, half});
    const at::Tensor a = pairs.select(dim + 1, 0), b = pairs.select(dim + 1, 1);
    values = at::stack({a + b, a - b}, dim + 1).flatten(dim, dim + 2);
  }
  return values * 0.25;
}

}  // namespace

at::Tensor random_words(uint64_t seed, int64_t stream, int64_t count, const at::Tensor& like) {
  constexpr int64_t kWords = 4;
  const auto random = random_blocks(seed, stream, 0, (count + kWords - 1) / kWords, like);
  return at::stack(at::TensorList(random.words), 1).flatten().narrow(0, 0, count);
}

QuantizedNVFP4 quantize_nvfp4(const Rows& x, Tile tile, const std::optional<NVFP4Draws>& draws) {
  const at::Tensor amax = amax_of(x.tensor);
  const at::Tensor quotient = (number(kLargestScale * kLargestCode, amax) / amax).clamp_max(kLargestFloat);
  const at::Tensor scale = at::where((amax == 0).logical_or(quotient == 0), 1.0F, quotient);
  const at::Tensor amaxes = amax_of_tiles(x, tile, /*keeps_nan=*/true);
  const at::Tensor block_scale = (amaxes * (scale / number(kLargestCode, scale)))
                                     .clamp_max(kLargestScale)
                                     .to(at::kFloat8_e4m3fn)
                                     .view(at::kByte)
                                     .bitwise_and(0x7f)  // the sign of NaN has no meaning
                                     .view(at::kFloat8_e4m3fn);
  const at::Tensor tiles = by_tiles(x.tensor.view({x.rows, x.cols}), tile).to(at::kFloat);
  const at::Tensor values = (tiles * of_tiles(factors_of(block_scale, scale))).view({x.rows, x.cols});
  const at::Tensor draw =
      draws ? draws_of(*draws, x.tensor.numel(), x.tensor).view(values.sizes()) : at::Tensor();
  const at::Tensor codes = encode_e2m1(values, draw).view({x.rows, x.cols / 2, 2});
  std::vector<int64_t> sizes = x.tensor.sizes().vec();
  sizes.back() /= 2;
  const at::Tensor bytes = codes.select(2, 0) | codes.select(2, 1) * 16;
  return {bytes.to(at::kByte).view(sizes), block_scale, scale, tile.rows, tile.cols};
}

at::Tensor restored(const QuantizedNVFP4& quantized) {
  std::vector<int64_t> sizes = quantized.codes.sizes().vec();
  sizes.back() *= 2;
  const at::Tensor bytes = quantized.codes.contiguous();
  const at::Tensor values = decode_e2m1(at::stack({bytes & 0xf, bytes.bitwise_right_shift(4)}, -1));
  if (values.numel() == 0) return values.view(sizes);
  const at::Tensor tiles =
      by_tiles(values.view({-1, sizes.back()}), {quantized.block_rows, quantized.block_cols});
  return (tiles * of_tiles(quantized.block_scale.to(at::kFloat))).view(sizes);
}

at::Tensor hadamard(const Rows& x, at::ArrayRef<float> signs) {
  const at::Tensor blocks = x.tensor.view({x.rows, x.cols / kSize, kSize});
  return times_h(blocks.to(at::kFloat) * signs_of(signs, blocks), 2).view(x.tensor.sizes());
}

at::Tensor inverse_hadamard(const Rows& x, at::ArrayRef<float> signs) {
  const at::Tensor blocks = x.tensor.view({x.rows, x.cols / kSize, kSize});
  return (times_h(blocks.to(at::kFloat), 2) * signs_of(signs, blocks)).view(x.tensor.sizes());
}

at::Tensor hadamard_columns(const Rows& x, at::ArrayRef<float> signs) {
  const at::Tensor blocks = x.tensor.view({x.rows / kSize, kSize, x.cols});
  return times_h(blocks.to(at::kFloat) * signs_of(signs, blocks).unsqueeze(1), 1).view(x.tensor.sizes());
}

}  // namespace mantissa::fp8::operators
