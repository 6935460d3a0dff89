// The quantization of a tensor by each recipe, in bytes of the input for each second, beside a copy of the tensor. The
// results are compared with libtorch's operators first.

#include <benchmark/benchmark.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>

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

template <class Work>
void measure(benchmark::State& state, const Work& work) {
  const at::Tensor x = input();
  if (!at::equal(quantize_fp8_current(x, kE4M3).codes.view(at::kByte), by_operators(x).view(at::kByte)))
    return state.SkipWithError("the codes differ from libtorch's");
  for (auto _ : state) benchmark::DoNotOptimize(work(x));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(x.nbytes()));
}

void copy(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) { return x.clone(); });
}
void operators(benchmark::State& state) { measure(state, by_operators); }
void delayed(benchmark::State& state) {
  const at::Tensor scale = at::scalar_tensor(100, at::kFloat), amax = at::scalar_tensor(0, at::kFloat);
  measure(state, [&](const at::Tensor& x) { return quantize_fp8(x, kE4M3, scale, amax); });
}
void current(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) { return quantize_fp8_current(x, kE4M3); });
}
void blocks_1x128(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) { return quantize_fp8_blocks(x, kE4M3, Fp8Block::k1x128); });
}
void mxfp8(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) { return quantize_mxfp8(x); });
}
void nvfp4(benchmark::State& state) {
  measure(state, [](const at::Tensor& x) { return quantize_nvfp4(x); });
}
void nvfp4_stochastic(benchmark::State& state) {
  measure(state,
          [](const at::Tensor& x) { return quantize_nvfp4(x, {.stochastic_rounding = NVFP4Draws{}}); });
}
void restore(benchmark::State& state) {
  const QuantizedFp8 quantized = quantize_fp8_current(input(), kE4M3);
  measure(state, [&](const at::Tensor&) { return dequantize_fp8(quantized); });
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
