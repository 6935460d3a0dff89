// What the scaler and an autocast region cost beside the libtorch calls they stand on.
#include <benchmark/benchmark.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/grad_scaler.h"

namespace mantissa {
namespace {

std::vector<at::Tensor> parameters(const benchmark::State& state) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < state.range(0); ++i) {
    all.push_back(at::ones({state.range(1)}).set_requires_grad(true));
    all.back().mutable_grad() = at::ones({state.range(1)});
  }
  return all;
}

void report_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0) * state.range(1) *
                          8);  // read and written, float32
}

/// torch's kernel alone: the floor for unscale_().
void BM_TorchUnscale(benchmark::State& state) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters(state)) gradients.push_back(p.grad());
  at::Tensor found_inf = at::zeros({}), inv_scale = at::full({}, 0.5);
  for (auto _ : state) at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
  report_bytes(state);
}

void BM_Unscale(benchmark::State& state) {
  const auto all = parameters(state);
  torch::optim::SGD optimizer(all, 0.1);
  GradScaler scaler(at::kCPU, {.init_scale = 2.0});
  scaler.scale(at::ones({}));
  for (auto _ : state) {
    scaler.unscale_(optimizer);
    scaler.update(2.0);
  }
  if (scaler.get_scale() != 2.0 || all[0].grad()[0].item<float>() > 1)
    state.SkipWithError("gradients were not unscaled");
  report_bytes(state);
}

BENCHMARK(BM_TorchUnscale)->Args({16, 1 << 20})->Args({500, 4096})->UseRealTime();
BENCHMARK(BM_Unscale)->Args({16, 1 << 20})->Args({500, 4096})->UseRealTime();

void BM_AutocastRegion(benchmark::State& state) {
  for (auto _ : state) {
    const Autocast region(at::kCPU);
    benchmark::DoNotOptimize(region.enabled());
  }
}
BENCHMARK(BM_AutocastRegion);

}  // namespace
}  // namespace mantissa
