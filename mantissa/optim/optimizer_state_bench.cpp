// Compares taking an optimizer's state as a tree with libtorch's own way, its zip file, here in memory. Both
// run in turn, and the result is the median of the ratios. Both leave a copy that the next step does not
// change, with the same contents.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <functional>
#include <sstream>
#include <vector>

#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include "mantissa/core/state_dict.h"
#include "mantissa/optim/optimizer_state.h"

namespace mantissa {
namespace {

double ms_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::string zipped(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream file;
  archive.save_to(file);
  return file.str();
}

void BM_OptimizerState_Zip(benchmark::State& state) {
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < state.range(0); ++i) {
    parameters.push_back(at::randn({state.range(1)}).set_requires_grad(true));
    parameters.back().mutable_grad() = at::randn({state.range(1)});
  }
  torch::optim::AdamW optimizer(parameters), other(parameters);
  optimizer.step();
  torch::serialize::InputArchive archive;
  std::istringstream file(zipped(optimizer));
  archive.load_from(file);
  other.load(archive);
  const std::string differs = difference(optimizer_state(other), optimizer_state(optimizer));
  if (!differs.empty()) return state.SkipWithError(differs.c_str());

  std::vector<double> ratios, tree_ms;
  for (auto unused : state) {
    const double zip = ms_of([&] { benchmark::DoNotOptimize(zipped(optimizer)); });
    const double tree = ms_of([&] { benchmark::DoNotOptimize(snapshot(optimizer_state(optimizer))); });
    ratios.push_back(zip / tree);
    tree_ms.push_back(tree);
  }
  const auto median = [](std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + int64_t(values.size() / 2), values.end());
    return values[values.size() / 2];
  };
  state.counters["faster"] = median(ratios);
  state.counters["tree_ms"] = median(tree_ms);
}
BENCHMARK(BM_OptimizerState_Zip)->Args({200, 100})->Args({50, 1'000'000})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mantissa
