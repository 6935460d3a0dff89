// A step of the 8-bit and 4-bit optimizers compared with libtorch's fused float32 Adam (at::_fused_adam_), on one large
// parameter. Both step in turn, and the result is the median of the ratios, so that the machine's drift affects
// both alike. The weights are compared before anything is timed.
#include <benchmark/benchmark.h>
#include <functional>
#include <limits>
#include <memory>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/optim/optimizers_4bit.h"

namespace mantissa {
namespace {

using Made = std::unique_ptr<LowBitOptimizer>;
using Make = std::function<Made(const at::Tensor&)>;

at::Tensor random(int64_t count, double scale, uint64_t seed) {
  return at::randn({count}, at::make_generator<at::CPUGeneratorImpl>(seed)) * scale;
}

/// Float32 Adam with nothing around libtorch's kernel.
struct FusedAdam32 {
  at::Tensor parameter, gradient, mean, square, step = at::zeros({});

  FusedAdam32(at::Tensor its_parameter, at::Tensor its_gradient)
      : parameter(std::move(its_parameter)),
        gradient(std::move(its_gradient)),
        mean(at::zeros_like(parameter)),
        square(at::zeros_like(parameter)) {}
  void take_step() {
    const at::NoGradGuard no_grad;
    step.add_(1);
    at::_fused_adam_({parameter}, {gradient}, {mean}, {square}, {}, {step}, 1e-3, 0.9, 0.999, 0, 1e-8,
                     /*amsgrad=*/false, /*maximize=*/false);
  }
};

int64_t bytes_of(const LowBitOptimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [key, value] : optimizer.state()) {
    const auto& state = dynamic_cast<const LowBitParamState&>(*value);
    for (const at::Tensor& tensor : {state.state1(), state.absmax1(), state.state2(), state.absmax2()})
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  }
  return bytes;
}

/// `ratio`: our time divided by the float32 Adam's, with the tenth and the ninetieth percentile; `cpu_ratio`:
/// the same in processor time; `state_bytes`: for each weight, measured.
/// `most_apart`: how far the weights may be from the float32 Adam's after three steps.
void compare(benchmark::State& state, const Make& make, at::ScalarType dtype, float most_apart) {
  const int64_t count = state.range(0);
  FusedAdam32 theirs(random(count, 0.1, 1), random(count, 0.01, 2));
  const at::Tensor ours = random(count, 0.1, 1).to(dtype).set_requires_grad(true);
  ours.mutable_grad() = theirs.gradient.to(dtype);
  const Made optimizer = make(ours);
  for (int i = 0; i < 3; ++i) theirs.take_step(), optimizer->step();
  const at::Tensor apart = (ours.detach().to(at::kFloat) - theirs.parameter).abs();
  if (apart.mean().item<float>() > most_apart) return state.SkipWithError("not the float32 Adam's weights");
  std::vector<double> our_ms, their_ms, ratios, cpu_ratios;
  for (auto _ : state) {
    const auto cost = [](const auto& step) {
      const std::clock_t cpu = std::clock();
      const auto start = std::chrono::steady_clock::now();
      step();
      const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
      return Cost{wall.count(), static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC};
    };
    const Cost a = cost([&] { theirs.take_step(); }), b = cost([&] { optimizer->step(); });
    state.SetIterationTime(b.wall);
    their_ms.push_back(a.wall * 1e3), our_ms.push_back(b.wall * 1e3);
    ratios.push_back(b.wall / a.wall), cpu_ratios.push_back(b.cpu / a.cpu);
  }
  state.counters["fp32_ms"] = quantile(their_ms, 0.5);
  state.counters["ms"] = quantile(our_ms, 0.5);
  state.counters["ratio"] = quantile(ratios, 0.5);
  state.counters["ratio_p10"] = quantile(ratios, 0.1);
  state.counters["ratio_p90"] = quantile(ratios, 0.9);
  state.counters["cpu_ratio"] = quantile(cpu_ratios, 0.5);
  state.counters["state_bytes"] = static_cast<double>(bytes_of(*optimizer)) / static_cast<double>(count);
  state.counters["threads"] = at::get_num_threads();
  state.SetLabel(tier_name(cpu_tier()));
}

template <typename Optimizer, typename Options>
Make make(const Options& options) {
  return [options](const at::Tensor& weight) {
    return std::make_unique<Optimizer>(std::vector<at::Tensor>{weight}, options);
  };
}

void sizes(benchmark::internal::Benchmark* run) {
  run->ArgNames({"elements"})->Arg(1 << 20)->Arg(1 << 22)->Arg(1 << 24);
  run->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(41);
}
void large(benchmark::internal::Benchmark* run) {
  run->ArgNames({"elements"})->Arg(1 << 22);
  run->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(41);
}

constexpr float kAnotherRule = std::numeric_limits<float>::infinity();
const Make kAdam8bit = make<Adam8bit>(AdamOptions(1e-3));
BENCHMARK_CAPTURE(compare, Adam8bit, kAdam8bit, at::kFloat, 1e-4F)->Apply(sizes);
BENCHMARK_CAPTURE(compare, Adam8bit_bfloat16, kAdam8bit, at::kBFloat16, 1e-3F)->Apply(large);
BENCHMARK_CAPTURE(compare, Adam4bit, make<Adam4bit>(AdamOptions(1e-3)), at::kFloat, 1e-3F)->Apply(sizes);
BENCHMARK_CAPTURE(compare, Lion8bit, make<Lion8bit>(LionOptions(1e-4)), at::kFloat, kAnotherRule)
    ->Apply(large);
BENCHMARK_CAPTURE(compare, SGD8bit, make<SGD8bit>(SGDOptions(1e-3).momentum(0.9)), at::kFloat, kAnotherRule)
    ->Apply(large);

}  // namespace
}  // namespace mantissa
