// Measures what the scaler adds to a whole training step on the CPU: the 8x8-digits convnet of
// models/convnet.h, written with plain functions (this room knows no models), batch 32, SGD. Steps with and
// without a scaler alternate, so that the machine's drift hits both, and they share one training: two
// separate trainings, each with its own memory, differed by 1 %. The benchmark times the processor time of
// the one thread, which other programs disturb less; the counter is the median of the ratios of neighbouring
// steps.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/relu.h>
#include <c10/util/irange.h>
#include <torch/optim/sgd.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/core/clock_internal.h"

namespace mantissa {
namespace {

struct Training {
  Training()
      : parameters{weight({16, 1, 3, 3}), weight({16}), weight({32, 16, 3, 3}), weight({32}),
                   weight({64, 512}),     weight({64}), weight({10, 64}),       weight({10})},
        optimizer(parameters, torch::optim::SGDOptions(0.01)) {}

  static at::Tensor weight(at::IntArrayRef sizes) {
    // Multiples of 2^-10 below 0.1, which are the same in both trainings, whatever came before.
    int64_t numel = 1;
    for (const int64_t size : sizes) numel *= size;
    std::vector<float> values(numel);
    for (const auto i : c10::irange(numel)) values[i] = static_cast<float>(i * 37 % 199 - 99) / 1024;
    return at::from_blob(values.data(), sizes).clone().set_requires_grad(true);
  }

  void step(const at::Tensor& images, const at::Tensor& labels, bool half, GradScaler& scaler) {
    at::Tensor loss;
    {
      const Autocast region(at::kCPU, {.dtype = at::kHalf, .enabled = half});
      at::Tensor x = at::relu(at::conv2d(images, parameters[0], parameters[1], 1, 1));
      x = at::relu(at::conv2d(x, parameters[2], parameters[3], 1, 1));
      x = at::max_pool2d(x, 2).flatten(1);
      x = at::relu(at::linear(x, parameters[4], parameters[5]));
      loss = at::cross_entropy_loss(at::linear(x, parameters[6], parameters[7]).to(at::kFloat), labels);
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
  }

  std::vector<at::Tensor> parameters;
  torch::optim::SGD optimizer;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Argument: 1 for fp16 under autocast, the scaler's purpose; 0 for float32, the shorter step.
void BM_ScalerInConvnetStep(benchmark::State& state) {
  const bool half = state.range(0) != 0;
  at::set_num_threads(1);
  const auto images = at::rand({32, 1, 8, 8}), labels = at::randint(0, 10, {32}, at::kLong);
  GradScaler on(at::kCPU), off(at::kCPU, {.enabled = false});
  Training training, with, without;
  for (int i = 0; i < 20; ++i) {
    training.step(images, labels, half, i % 2 == 0 ? on : off);
    with.step(images, labels, half, on);
    without.step(images, labels, half, off);
  }
  // In float32 a power-of-two scale changes no bit.
  if (!half && !at::equal(with.parameters[4], without.parameters[4])) {
    state.SkipWithError("the trainings differ");
    return;
  }
  const auto time = [&](GradScaler& scaler) {
    const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    training.step(images, labels, half, scaler);
    return seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin;
  };
  std::vector<double> ratios, plain, added;
  bool first = true;
  for (auto _ : state) {
    double scaled = 0, unscaled = 0;
    if (first) {
      scaled = time(on);
      unscaled = time(off);
    } else {
      unscaled = time(off);
      scaled = time(on);
    }
    first = !first;
    ratios.push_back(scaled / unscaled);
    plain.push_back(unscaled);
    added.push_back(scaled - unscaled);
  }
  state.counters["overhead_percent"] = 100 * (median(ratios) - 1);
  state.counters["plain_us"] = 1e6 * median(plain);
  state.counters["added_us"] = 1e6 * median(added);
}
BENCHMARK(BM_ScalerInConvnetStep)->ArgName("fp16")->Arg(0)->Iterations(3000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_ScalerInConvnetStep)->ArgName("fp16")->Arg(1)->Iterations(200)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mantissa
