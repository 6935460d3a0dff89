// The scaler's check and unscaling compared with libtorch's. Both run in turn, so that drift of the machine
// affects them equally; the result is the median of the ratios. The outputs are compared before anything is
// timed.
#include <benchmark/benchmark.h>
#include <chrono>
#include <vector>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/aten/unscale_internal.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

/// `ratio` is the time divided by libtorch's, with the tenth and the ninetieth percentile.
void BM_Unscale(benchmark::State& state, at::ScalarType dtype) {
  std::vector<at::Tensor> theirs, ours;
  for (int64_t i = 0; i < state.range(0); ++i) {
    theirs.push_back(at::randn({state.range(1)}).to(dtype));
    ours.push_back(theirs.back().clone());
  }
  at::Tensor found_inf = at::zeros({});
  const auto time = [&](std::vector<at::Tensor>& gradients, auto&& kernel, double factor) {
    const at::Tensor inv_scale = at::full({}, factor, at::kFloat);
    const auto start = Clock::now();
    kernel(gradients, found_inf, inv_scale);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  };
  const auto both = [&](double factor) {
    const double stock = time(theirs, at::native::_amp_foreach_non_finite_check_and_unscale_cpu_, factor);
    return std::pair(time(ours, kernels::aten::unscale::non_finite_check_and_unscale_, factor), stock);
  };
  both(0.5);
  for (size_t i = 0; i < ours.size(); ++i)
    if (!at::equal(ours[i], theirs[i])) return state.SkipWithError("not libtorch's bits");
  std::vector<double> our_us, their_us, ratios;
  double factor = 2;  // alternates with its inverse, so that nothing flushes to zero
  for (auto _ : state) {
    const auto [mine, stock] = both(factor);
    factor = 1 / factor;
    our_us.push_back(mine), their_us.push_back(stock), ratios.push_back(mine / stock);
    state.SetIterationTime(mine * 1e-6);
  }
  state.counters["us"] = quantile(our_us, 0.5);
  state.counters["torch_us"] = quantile(their_us, 0.5);
  state.counters["ratio"] = quantile(ratios, 0.5);
  state.counters["ratio_p10"] = quantile(ratios, 0.1);
  state.counters["ratio_p90"] = quantile(ratios, 0.9);
  state.SetLabel(tier_name(cpu_tier()));
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tensors", "elements"})
      ->Args({16, 1 << 20})
      ->Args({148, 1 << 16})
      ->Args({500, 1 << 12})
      ->Args({8, 300});
  bench->UseManualTime()->MinTime(1);
}
BENCHMARK_CAPTURE(BM_Unscale, float32, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(BM_Unscale, float16, at::kHalf)->Apply(sizes);
BENCHMARK_CAPTURE(BM_Unscale, bfloat16, at::kBFloat16)->Apply(sizes);

}  // namespace
}  // namespace mantissa
