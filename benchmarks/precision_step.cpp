// A training step in each 16-bit mode, and of the GPTs with each FP8 recipe, compared with the same step in 32-true. Both run in turn, A B A B ...,
// and the result is the median of the ratios, so that drift of the machine affects them equally. The mode
// with libtorch's own CPU kernels (`stock`) is measured as well. Before a time counts, both models must have
// learned the same from the same batches. MANTISSA_MAX_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2
// ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 simulates a CPU with AVX2 only;
// --benchmark_filter=gpt-256 selects benchmarks; --benchmark_out=FILE writes JSON.
#include <benchmark/benchmark.h>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "benchmarks/training_internal.h"
#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/fp8/recipe_settings.h"
#include "mantissa/kernels/aten/overrides.h"

namespace mantissa {
namespace {

struct Contender {
  std::string name, mode;
  PrecisionOptions options = {};
};

std::vector<Contender> contenders(const Case& each) {
  std::vector<Contender> contenders;
  for (const std::string mode : {"bf16-mixed", "16-mixed", "bf16-true"}) contenders.push_back({mode, mode});
  if (!each.name.starts_with("gpt")) return contenders;  // a ResNet has one linear layer
  for (const std::string& recipe : fp8_recipe_names())
    contenders.push_back({"fp8-mixed/" + recipe, "fp8-mixed", {.recipe = make_fp8_recipe(recipe, {})}});
  return contenders;
}

void compare(benchmark::State& state, const Case& each, const Contender& contender) {
  torch::manual_seed(1);
  const Data data = each.data();
  const auto make = [&](const std::string& mode, const PrecisionOptions& options) {
    torch::manual_seed(2);
    return Training(make_precision(mode, at::kCPU, options), each.make(), data);
  };
  Training base = make("32-true", {}), mine = make(contender.mode, contender.options);
  const double base_loss = base.loss_after(4), my_loss = mine.loss_after(4);
  if (!(std::abs(my_loss - base_loss) < 0.05 * base_loss)) {
    const std::string losses = std::to_string(my_loss) + ", and " + std::to_string(base_loss) + " in 32-true";
    state.SkipWithError(("the losses differ after four steps: " + losses).c_str());
    return;
  }
  const auto run = [](Training& training) { return cost_of([&] { return training.step(); }, 1); };
  std::vector<double> wall, cpu, stock, ms;
  for (auto _ : state) {
    const Cost theirs = run(base), ours = run(mine);
    state.SetIterationTime(ours.wall);
    wall.push_back(ours.wall / theirs.wall);
    cpu.push_back(ours.cpu / theirs.cpu);
    ms.push_back(1e3 * theirs.wall);
    if (stock.empty() || (stock.size() < 3 && stock.back() < 5)) {
      disable_cpu_kernels();
      stock.push_back(run(mine).wall / theirs.wall);
      enable_cpu_kernels();
    }
  }
  state.counters["fp32"] = quantile(wall, 0.5);
  state.counters["fp32_p10"] = quantile(wall, 0.1);
  state.counters["fp32_p90"] = quantile(wall, 0.9);
  state.counters["fp32_cpu"] = quantile(cpu, 0.5);
  state.counters["fp32_ms"] = quantile(ms, 0.5);
  state.counters["stock"] = quantile(stock, 0.5);
}

bool register_all() {
  benchmark::AddCustomContext("tier", tier_name(cpu_tier()));
  benchmark::AddCustomContext("hardware_tier", tier_name(hardware_cpu_tier()));
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  for (const Case& each : cases())
    for (const Contender& contender : contenders(each))
      benchmark::RegisterBenchmark(
          (each.name + "/" + contender.name).c_str(),
          [&each, contender](benchmark::State& state) { compare(state, each, contender); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->Iterations(15);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
