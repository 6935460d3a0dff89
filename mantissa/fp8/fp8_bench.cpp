// The quantization of a tensor by each recipe, in bytes of the input for each second, beside a copy of the tensor. The
// result of each is compared with libtorch's operators first.

#include <benchmark/benchmark.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"

namespace mantissa {
namespace {

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;

at::Tensor input() {
  static const at::Tensor x = at::randn({2048, 1024});
  return x;
}

at::Tensor by_operators(const at::Tensor& x) {
  // Not 448 / tensor, which multiplies by a reciprocal.
  return x.mul(at::scalar_tensor(448, at::kFloat).div(x.abs().max())).clamp(-448, 448).to(kE4M3);
}

at::Tensor codes_of(const at::Tensor& scaled) { return scaled.clamp(-448, 448).to(kE4M3).view(at::kByte); }

bool are_codes(const at::Tensor& codes, const at::Tensor& scaled) {
  return at::equal(codes.view(at::kByte), codes_of(scaled).view(codes.sizes()));
}

/// The input's blocks [rows, blocks, size], and their largest magnitudes [rows, blocks, 1].
struct Blocks {
  at::Tensor values, amax;
};

Blocks blocks_of(const at::Tensor& x, int64_t size) {
  const at::Tensor values = x.view({x.size(0), -1, size});
  return {values, values.abs().amax({2}, /*keepdim=*/true)};
}

bool is_as_in_blocks_1x128(const at::Tensor& x, const QuantizedFp8Blocks& got) {
  const Blocks blocks = blocks_of(x, 128);
  const at::Tensor scale = at::scalar_tensor(448, at::kFloat).div(blocks.amax);
  const at::Tensor rounded_down = scale.view(at::kInt).bitwise_and(0x7f800000).view(at::kFloat);
  return at::equal(got.scale_inv, rounded_down.reciprocal().squeeze(2)) &&
         are_codes(got.codes, blocks.values.mul(rounded_down));
}

bool is_as_in_mxfp8(const at::Tensor& x, const QuantizedMXFP8& got) {
  const Blocks blocks = blocks_of(x, 32);
  // The mantissa is in [0.5, 1): a power of two has an exponent that is 1 too large.
  const auto [mantissa, exponent] = at::frexp(blocks.amax.mul(1 / 448.0F));
  const at::Tensor rounded_up = exponent.sub(mantissa.eq(0.5).to(at::kInt));
  return at::equal(got.exponents.view(at::kByte), rounded_up.add(127).to(at::kByte).squeeze(2)) &&
         are_codes(got.codes, at::ldexp(blocks.values, rounded_up.neg()));
}

/// `round` maps a tensor to whole numbers.
template <class Round>
at::Tensor rounded_to_e2m1(const at::Tensor& values, const Round& round) {
  const at::Tensor size = values.abs();
  const at::Tensor below_4 = at::where(size.lt(2), round(size.mul(2)).div(2), round(size));
  return at::where(size.lt(4), below_4, round(size.div(2)).mul(2)).clamp_max(6);
}

bool is_as_in_nvfp4(const at::Tensor& x, const QuantizedNVFP4& got, bool is_stochastic) {
  const Blocks blocks = blocks_of(x, 16);
  const at::Tensor scale = at::scalar_tensor(2688, at::kFloat).div(x.abs().max());
  const at::Tensor block_scale = blocks.amax.mul(scale.div(6)).clamp_max(448).to(kE4M3);
  if (!at::equal(got.scale, scale) ||
      !at::equal(got.block_scale.view(at::kByte), block_scale.view(at::kByte).squeeze(2)))
    return false;
  const at::Tensor block_scales = block_scale.to(at::kFloat);
  const at::Tensor scaled = blocks.values.mul(scale.div(block_scales));
  const auto restored = [&](const auto& round) {
    return rounded_to_e2m1(scaled, round).mul(block_scales).div(scale).view(x.sizes());
  };
  const at::Tensor values = dequantize_fp8(got), sizes = values.abs();
  if (!values.mul(x).ge(0).all().item<bool>()) return false;
  if (!is_stochastic) return at::equal(sizes, restored([](const at::Tensor& t) { return t.round(); }));
  const at::Tensor low = restored([](const at::Tensor& t) { return t.floor(); });
  const at::Tensor high = restored([](const at::Tensor& t) { return t.ceil(); });
  return sizes.eq(low).logical_or(sizes.eq(high)).all().item<bool>();
}

/// Measures `work` if `is_right` accepts its result.
template <class Work, class IsRight>
void measure(benchmark::State& state, const Work& work, const IsRight& is_right) {
  const at::Tensor x = input();
  if (!is_right(x, work(x)))
    return state.SkipWithError("the result differs from that of libtorch's operators");
  for (auto _ : state) benchmark::DoNotOptimize(work(x));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(x.nbytes()));
}

void copy(benchmark::State& state) {
  measure(
      state, [](const at::Tensor& x) { return x.clone(); },
      [](const at::Tensor& x, const at::Tensor& got) { return at::equal(got, x); });
}
void operators(benchmark::State& state) {
  measure(state, by_operators, [](const at::Tensor& x, const at::Tensor& got) {
    return at::equal(got.view(at::kByte), quantize_fp8_current(x, kE4M3).codes.view(at::kByte));
  });
}
void delayed(benchmark::State& state) {
  const at::Tensor scale = at::scalar_tensor(100, at::kFloat), amax = at::scalar_tensor(0, at::kFloat);
  measure(
      state, [&](const at::Tensor& x) { return quantize_fp8(x, kE4M3, scale, amax); },
      [&](const at::Tensor& x, const QuantizedFp8& got) {
        return are_codes(got.codes, x.mul(100)) && at::equal(amax, x.abs().max());
      });
}
void current(benchmark::State& state) {
  measure(
      state, [](const at::Tensor& x) { return quantize_fp8_current(x, kE4M3); },
      [](const at::Tensor& x, const QuantizedFp8& got) {
        return at::equal(got.codes.view(at::kByte), by_operators(x).view(at::kByte));
      });
}
void blocks_1x128(benchmark::State& state) {
  measure(
      state, [](const at::Tensor& x) { return quantize_fp8_blocks(x, kE4M3, Fp8Block::k1x128); },
      is_as_in_blocks_1x128);
}
void mxfp8(benchmark::State& state) {
  measure(
      state, [](const at::Tensor& x) { return quantize_mxfp8(x); }, is_as_in_mxfp8);
}
void nvfp4(benchmark::State& state) {
  measure(
      state, [](const at::Tensor& x) { return quantize_nvfp4(x); },
      [](const at::Tensor& x, const QuantizedNVFP4& got) { return is_as_in_nvfp4(x, got, false); });
}
void nvfp4_stochastic(benchmark::State& state) {
  measure(
      state, [](const at::Tensor& x) { return quantize_nvfp4(x, {.stochastic_rounding = NVFP4Draws{}}); },
      [](const at::Tensor& x, const QuantizedNVFP4& got) { return is_as_in_nvfp4(x, got, true); });
}
void restore(benchmark::State& state) {
  const QuantizedFp8 quantized = quantize_fp8_current(input(), kE4M3);
  measure(
      state, [&](const at::Tensor&) { return dequantize_fp8(quantized); },
      [&](const at::Tensor&, const at::Tensor& got) {
        return at::equal(got, quantized.codes.to(at::kFloat).mul(quantized.scale_inv));
      });
}

BENCHMARK(copy)->UseRealTime();
BENCHMARK(operators)->UseRealTime();
BENCHMARK(delayed)->UseRealTime();
BENCHMARK(current)->UseRealTime();
BENCHMARK(blocks_1x128)->UseRealTime();
BENCHMARK(mxfp8)->UseRealTime();
BENCHMARK(nvfp4)->UseRealTime();
BENCHMARK(nvfp4_stochastic)->UseRealTime();
BENCHMARK(restore)->UseRealTime();

}  // namespace
}  // namespace mantissa
