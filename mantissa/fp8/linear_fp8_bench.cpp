// Forward and backward of the four linear layers of a GPT's block, by each recipe and in float32 through
// at::linear, in turn in one process. Each layer's input, weight and bias get a gradient.
// MANTISSA_MAX_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 simulates
// a CPU with AVX2 only; --benchmark_filter=block/256 selects benchmarks; --benchmark_out=FILE writes JSON.
//
//   fp32, fp32_p10, fp32_p90   wall time over that of the float32 layers: the median of all rounds, with its tenth
//                              and ninetieth percentile
//   fp32_ms                    the time of the float32 layers
#include <benchmark/benchmark.h>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/overloaded.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"

namespace mantissa {
namespace {

struct Layer {
  at::Tensor x, weight, bias, dy;
  std::shared_ptr<Fp8LinearState> state;
};

std::vector<Layer> layers_of(int64_t width, int64_t tokens, const Fp8Recipe& recipe) {
  std::vector<Layer> layers;
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
           {width, 3 * width}, {width, width}, {width, 4 * width}, {4 * width, width}})
    layers.push_back({at::randn({tokens, in}).set_requires_grad(true),
                      at::randn({out, in}).mul_(0.02).set_requires_grad(true),
                      at::zeros({out}).set_requires_grad(true), at::randn({tokens, out}).mul_(1e-4),
                      std::make_shared<Fp8LinearState>(recipe)});
  return layers;
}

/// A step of all layers. The gradients are new in each step, as after zero_grad().
template <class Linear>
int step(std::vector<Layer>& layers, const Linear& linear) {
  for (Layer& layer : layers) {
    linear(layer).backward(layer.dy);
    for (at::Tensor* const leaf : {&layer.x, &layer.weight, &layer.bias}) leaf->mutable_grad().reset();
  }
  return 0;
}

at::Tensor in_float32(const Layer& layer) { return at::linear(layer.x, layer.weight, layer.bias); }
at::Tensor in_fp8(const Layer& layer) { return linear_fp8(layer.x, layer.weight, layer.bias, layer.state); }

/// What the recipe makes of an input or a weight. The scales of delayed scaling are still 1.
at::Tensor quantized(const at::Tensor& x, const Fp8Recipe& recipe, bool is_weight) {
  constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;
  return std::visit(
      c10::overloaded(
          [&](const DelayedScaling&) {
            return dequantize_fp8(QuantizedFp8{cast_to_fp8(x, kE4M3), at::scalar_tensor(1, at::kFloat)});
          },
          [&](const Float8CurrentScaling&) { return dequantize_fp8(quantize_fp8_current(x, kE4M3)); },
          [&](const Float8BlockScaling&) {
            return dequantize_fp8(
                quantize_fp8_blocks(x, kE4M3, is_weight ? Fp8Block::k128x128 : Fp8Block::k1x128));
          },
          [&](const MXFP8BlockScaling&) { return dequantize_fp8(quantize_mxfp8(x)); },
          [&](const NVFP4BlockScaling&) {
            return dequantize_fp8(quantize_nvfp4(x, {.two_dimensional = is_weight}));
          }),
      recipe);
}

/// Whether the result is the product of the quantized factors, within the error of float32 sums.
bool is_right(const Layer& layer, const Fp8Recipe& recipe) {
  const at::Tensor x = quantized(layer.x.detach(), recipe, false),
                   w = quantized(layer.weight.detach(), recipe, true).t();
  const at::Tensor exact = at::matmul(x.to(at::kDouble), w.to(at::kDouble));
  const at::Tensor bound = at::matmul(x.abs(), w.abs()).mul_(1e-6);
  return (in_fp8(layer).detach() - exact).abs().le(bound).all().item<bool>();
}

void compare(benchmark::State& state, int64_t width, int64_t tokens, const Fp8Recipe& recipe) {
  std::vector<Layer> layers = layers_of(width, tokens, recipe);
  for (const Layer& layer : layers)
    if (!is_right(layer, recipe)) return state.SkipWithError("the result differs from the formula's");
  const auto narrow_step = [&] {
    step(layers, in_fp8);
    for (const Layer& layer : layers) layer.state->update_scales();
    return 0;
  };
  std::vector<double> ratios, ms;
  for (auto _ : state) {
    const auto [wide, narrow] = costs_in_turn(
        ratios.size(), [&] { return cost_of([&] { return step(layers, in_float32); }, 2); },
        [&] { return cost_of(narrow_step, 2); });
    state.SetIterationTime(narrow.wall);
    ratios.push_back(narrow.wall / wide.wall);
    ms.push_back(1e3 * wide.wall);
  }
  state.counters["fp32"] = quantile(ratios, 0.5);
  state.counters["fp32_p10"] = quantile(ratios, 0.1);
  state.counters["fp32_p90"] = quantile(ratios, 0.9);
  state.counters["fp32_ms"] = quantile(ms, 0.5);
}

bool register_all() {
  benchmark::AddCustomContext("tier", tier_name(cpu_tier()));
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  const std::vector<std::pair<std::string, Fp8Recipe>> recipes = {
      {"DelayedScaling", DelayedScaling{.amax_history_len = 16}},
      {"Float8CurrentScaling", Float8CurrentScaling{}},
      {"Float8BlockScaling", Float8BlockScaling{}},
      {"MXFP8BlockScaling", MXFP8BlockScaling{}},
      {"NVFP4BlockScaling", NVFP4BlockScaling{}}};
  for (const int64_t width : {256, 768})
    for (const int64_t tokens : {512, 1024})
      for (const auto& [name, recipe] : recipes)
        benchmark::RegisterBenchmark(
            ("block/" + std::to_string(width) + "/tokens:" + std::to_string(tokens) + "/" + name).c_str(),
            [=, recipe = recipe](benchmark::State& state) { compare(state, width, tokens, recipe); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(width == 256 ? 21 : 11);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
