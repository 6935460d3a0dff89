// GELU and its gradient in 16 bits against float32: both in turn, and the median of the ratios; beside them
// libtorch's own 16-bit kernels. Every result is checked before it is timed.
#include <benchmark/benchmark.h>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/overrides.h"

namespace mantissa {
namespace {

void compare(benchmark::State& state, at::ScalarType dtype, const char* approximate, bool backward) {
  const at::Tensor wide = at::randn({state.range(0)}), x = wide.to(dtype);
  const at::Tensor wide_gradient = at::ones_like(wide), gradient = at::ones_like(x);
  const auto run = [&](const at::Tensor& g, const at::Tensor& values) {
    return backward ? at::gelu_backward(g, values, approximate) : at::gelu(values, approximate);
  };
  enable_cpu_kernels();
  if ((run(gradient, x).to(at::kFloat) - run(wide_gradient, wide)).abs().max().item<double>() > 0.05) {
    state.SkipWithError("the results differ");
    return;
  }
  const int64_t repeats = 1 + (int64_t{1} << 21) / state.range(0);
  const auto twin = [&] { return run(wide_gradient, wide); };
  const auto mine = [&] { return run(gradient, x); };
  std::vector<double> ratios, stock;
  for (auto _ : state) {
    const double base = cost_of(twin, repeats).cpu;
    const auto [ours, theirs] = costs_in_turn(
        ratios.size(), [&] { return cost_of(mine, repeats); },
        [&] {
          disable_cpu_kernels();
          const Cost cost = cost_of(mine, repeats);
          enable_cpu_kernels();
          return cost;
        });
    state.SetIterationTime(ours.wall);
    ratios.push_back(ours.cpu / base);
    stock.push_back(theirs.cpu / base);
  }
  state.counters["fp32"] = quantile(ratios, 0.5);
  state.counters["fp32_p90"] = quantile(ratios, 0.9);
  state.counters["stock"] = quantile(stock, 0.5);
  state.SetLabel(tier_name(cpu_tier()));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(1 << 10)->Arg(1 << 14)->Arg(1 << 19)->UseManualTime()->Iterations(21)->Unit(
      benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(compare, gelu_bf16, at::kBFloat16, "none", false)->Apply(sizes);
BENCHMARK_CAPTURE(compare, gelu_fp16, at::kHalf, "none", false)->Apply(sizes);
BENCHMARK_CAPTURE(compare, gelu_tanh_bf16, at::kBFloat16, "tanh", false)->Apply(sizes);
BENCHMARK_CAPTURE(compare, gelu_backward_bf16, at::kBFloat16, "none", true)->Apply(sizes);
BENCHMARK_CAPTURE(compare, gelu_backward_fp16, at::kHalf, "none", true)->Apply(sizes);
BENCHMARK_CAPTURE(compare, gelu_tanh_backward_bf16, at::kBFloat16, "tanh", true)->Apply(sizes);

}  // namespace
}  // namespace mantissa
