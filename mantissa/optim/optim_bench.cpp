// Compares a step of the fused optimizers with libtorch's and ours. Both step in turn, A B A B ..., and the
// result is the median of the ratios, so that the machine's drift affects both alike. The weights are
// compared before anything is timed.
#include <benchmark/benchmark.h>
#include <chrono>
#include <ctime>
#include <functional>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/stochastic_round.h"

namespace mantissa {
namespace {

using torch::optim::Optimizer;

/// Returns `tensors` weights of `elements` each, with gradients; they are the same at every call.
std::vector<at::Tensor> parameters(int64_t tensors, int64_t elements, at::ScalarType dtype) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < tensors; ++i) {
    all.push_back((at::randn({elements}, generator) * 0.1).to(dtype).set_requires_grad(true));
    all.back().mutable_grad() = at::randn({elements}, generator).to(dtype);
  }
  return all;
}

struct Cost {
  double wall_ms, cpu_ms;  // of all threads, including the time they wait for each other
};

Cost cost_of(Optimizer& optimizer) {
  const std::clock_t cpu = std::clock();
  const auto start = std::chrono::steady_clock::now();
  optimizer.step();
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - start;
  return {wall.count(), static_cast<double>(std::clock() - cpu) * 1e3 / CLOCKS_PER_SEC};
}

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

/// `faster`: how many times as fast as `theirs` `ours` steps, with the tenth and the ninetieth percentile.
/// `less_cpu`: the same in processor time, which other programs on the machine distort less.
void compare(benchmark::State& state, const Make& theirs, const Make& ours, at::ScalarType dtype,
             double error) {
  const auto their_weights = parameters(state.range(0), state.range(1), dtype),
             our_weights = parameters(state.range(0), state.range(1), dtype);
  const auto their_optimizer = theirs(their_weights), our_optimizer = ours(our_weights);
  for (int i = 0; i < 3; ++i) {
    their_optimizer->step();
    our_optimizer->step();
  }
  {
    const at::NoGradGuard no_grad;
    const at::Tensor a = at::cat(their_weights), b = at::cat(our_weights),
                     start = at::cat(parameters(state.range(0), state.range(1), dtype));
    if (!at::allclose(a, b, 0, error) || at::allclose(a, start, 0, error)) {
      state.SkipWithError("the weights differ, or did not move");
      return;
    }
  }
  std::vector<double> their_ms, our_ms, faster, less_cpu;
  for (auto _ : state) {
    const Cost a = cost_of(*their_optimizer), b = cost_of(*our_optimizer);
    state.SetIterationTime(b.wall_ms / 1e3);
    their_ms.push_back(a.wall_ms);
    our_ms.push_back(b.wall_ms);
    faster.push_back(a.wall_ms / b.wall_ms);
    less_cpu.push_back(a.cpu_ms / b.cpu_ms);
  }
  state.counters["theirs_ms"] = quantile(their_ms, 0.5);
  state.counters["ours_ms"] = quantile(our_ms, 0.5);
  state.counters["faster"] = quantile(faster, 0.5);
  state.counters["faster_p10"] = quantile(faster, 0.1);
  state.counters["faster_p90"] = quantile(faster, 0.9);
  state.counters["less_cpu"] = quantile(less_cpu, 0.5);
  state.counters["threads"] = at::get_num_threads();
}

template <typename T, typename Options, typename... Arguments>
Make make(const Options& options, const Arguments&... arguments) {
  return [=](std::vector<at::Tensor> weights) {
    return std::make_unique<T>(std::move(weights), options, arguments...);
  };
}

// The steps are large, so that the check also sees them in 16 bits.
const AdamOptions kAdam = AdamOptions(0.02).weight_decay(0.01);
const Make kTorchAdamW = make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02).weight_decay(0.01));
const Make kTorchSGD =
    make<torch::optim::SGD>(torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.01));
const SGDOptions kSGD = SGDOptions(0.02).momentum(0.9).weight_decay(0.01);
const FusedOptions kRounding = {.stochastic_rounding = true, .seed = 1};

void sizes(benchmark::internal::Benchmark* run) {
  run->ArgNames({"tensors", "elements"})
      ->Args({100, 40'000})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(101);
}

void BM_FusedAdamW_TorchAdamW(benchmark::State& state) {
  compare(state, kTorchAdamW, make<FusedAdamW>(AdamWOptions(kAdam)), at::kFloat, 1e-5);
}
void BM_FusedAdamW_AdamW(benchmark::State& state) {
  compare(state, make<AdamW>(AdamWOptions(kAdam)), make<FusedAdamW>(AdamWOptions(kAdam)), at::kFloat, 1e-5);
}
void BM_FusedSGD_TorchSGD(benchmark::State& state) {
  compare(state, kTorchSGD, make<FusedSGD>(kSGD), at::kFloat, 1e-5);
}
void BM_FusedSGD_SGD(benchmark::State& state) {
  compare(state, make<SGD>(kSGD), make<FusedSGD>(kSGD), at::kFloat, 1e-5);
}
void BM_FusedAdamW_TorchAdamW_BFloat16(benchmark::State& state) {
  compare(state, kTorchAdamW, make<FusedAdamW>(AdamWOptions(kAdam)), at::kBFloat16, 0.02);
}
void BM_FusedAdamW_AdamW_BFloat16(benchmark::State& state) {
  compare(state, make<AdamW>(AdamWOptions(kAdam)), make<FusedAdamW>(AdamWOptions(kAdam)), at::kBFloat16,
          0.02);
}
void BM_FusedSGD_SGD_BFloat16(benchmark::State& state) {
  compare(state, make<SGD>(kSGD), make<FusedSGD>(kSGD), at::kBFloat16, 0.02);
}
void BM_StochasticAdamW_AdamW_BFloat16(benchmark::State& state) {
  compare(state, make<AdamW>(AdamWOptions(kAdam)), make<FusedAdamW>(AdamWOptions(kAdam), kRounding),
          at::kBFloat16, 0.02);
}
void BM_StochasticAdamW_FusedAdamW_BFloat16(benchmark::State& state) {
  compare(state, make<FusedAdamW>(AdamWOptions(kAdam)), make<FusedAdamW>(AdamWOptions(kAdam), kRounding),
          at::kBFloat16, 0.02);
}
BENCHMARK(BM_FusedAdamW_TorchAdamW)->Apply(sizes);
BENCHMARK(BM_FusedAdamW_AdamW)->Apply(sizes);
BENCHMARK(BM_FusedSGD_TorchSGD)->Apply(sizes);
BENCHMARK(BM_FusedSGD_SGD)->Apply(sizes);
BENCHMARK(BM_FusedAdamW_TorchAdamW_BFloat16)->Apply(sizes);
BENCHMARK(BM_FusedAdamW_AdamW_BFloat16)->Apply(sizes);
BENCHMARK(BM_FusedSGD_SGD_BFloat16)->Apply(sizes);
BENCHMARK(BM_StochasticAdamW_AdamW_BFloat16)->Apply(sizes);
BENCHMARK(BM_StochasticAdamW_FusedAdamW_BFloat16)->Apply(sizes);

void BM_StochasticRound(benchmark::State& state, at::ScalarType dtype) {
  const at::Tensor in = at::randn({state.range(0)}), out = at::empty_like(in, at::TensorOptions(dtype));
  uint64_t step = 0;
  for (auto _ : state) stochastic_round_(out, in, 1, ++step);
  if ((out.to(at::kFloat) - in).abs().max().item<float>() > 0.04F) state.SkipWithError("rounded wrongly");
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * state.range(0) * 6);  // reads float32, writes 16 bits
}
BENCHMARK_CAPTURE(BM_StochasticRound, BFloat16, at::kBFloat16)->Arg(4'000'000)->UseRealTime();
BENCHMARK_CAPTURE(BM_StochasticRound, Half, at::kHalf)->Arg(4'000'000)->UseRealTime();

/// The lower bound: rounding to nearest.
void BM_RoundToNearest(benchmark::State& state, at::ScalarType dtype) {
  const at::Tensor in = at::randn({state.range(0)}), out = at::empty_like(in, at::TensorOptions(dtype));
  for (auto _ : state) out.copy_(in);
  state.SetBytesProcessed(state.iterations() * state.range(0) * 6);
}
BENCHMARK_CAPTURE(BM_RoundToNearest, BFloat16, at::kBFloat16)->Arg(4'000'000)->UseRealTime();

}  // namespace
}  // namespace mantissa
