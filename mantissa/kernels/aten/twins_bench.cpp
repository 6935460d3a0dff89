#include <algorithm>
#include <benchmark/benchmark.h>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/Parallel.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/aten/twins_bench_internal.h"

namespace mantissa {
namespace {

constexpr double kSecondsOfARound = 3e-3;

using Named = std::pair<double, std::string>;  // a ratio, the benchmark's name

std::vector<Named>& over_twins() {
  static std::vector<Named> ratios;
  return ratios;
}
std::vector<Named>& over_stocks() {
  static std::vector<Named> ratios;
  return ratios;
}

/// Measures libtorch's own kernel.
Cost stock_cost(const Run& run, int64_t repeats) {
  struct Stock {
    Stock() { disable_cpu_kernels(); }
    ~Stock() { enable_cpu_kernels(); }
  } scope;
  return cost_of(run, repeats);
}

void time_in_turn(benchmark::State& state, const std::string& name, const Twins& twins) {
  const auto repeats_of = [](const Cost& once) {
    return std::max<int64_t>(1, static_cast<int64_t>(kSecondsOfARound / once.wall));
  };
  const int64_t repeats = repeats_of(cost_of(twins.wide, 3));
  const int64_t stock_repeats =
      twins.with_stock ? std::min(repeats, repeats_of(stock_cost(twins.narrow, 1))) : 0;
  std::vector<double> wall, cpu, stock, over_stock, twin_seconds;
  for (auto _ : state) {
    const Cost base = cost_of(twins.wide, repeats);
    // A kernel that is clearly slower needs only a few rounds.
    const bool stock_now = twins.with_stock && (stock.size() < 3 || quantile(over_stock, 0.5) > 0.5);
    const auto [mine, theirs] = costs_in_turn(
        wall.size(), [&] { return cost_of(twins.narrow, repeats); },
        [&] { return stock_now ? stock_cost(twins.narrow, stock_repeats) : Cost{}; });
    state.SetIterationTime(mine.wall);
    wall.push_back(mine.wall / base.wall);
    cpu.push_back(mine.cpu / base.cpu);
    twin_seconds.push_back(base.wall);
    if (stock_now) {
      stock.push_back(theirs.wall / base.wall);
      over_stock.push_back(mine.wall / theirs.wall);
    }
  }
  state.counters["fp32"] = quantile(wall, 0.5);
  state.counters["fp32_p10"] = quantile(wall, 0.1);
  state.counters["fp32_p90"] = quantile(wall, 0.9);
  state.counters["fp32_cpu"] = quantile(cpu, 0.5);
  if (twins.products > 0) state.counters["fp32_gflops"] = 2e-9 * twins.products / quantile(twin_seconds, 0.5);
  over_twins().emplace_back(quantile(wall, 0.5), name);
  if (twins.with_stock) {
    state.counters["stock"] = quantile(stock, 0.5);
    state.counters["over_stock"] = quantile(over_stock, 0.5);
    over_stocks().emplace_back(quantile(over_stock, 0.5), name);
  }
  state.SetLabel(twins.kernel);
}

void summary(benchmark::State& state) {
  auto& twins = over_twins();
  auto& stocks = over_stocks();
  if (twins.empty()) return state.SkipWithError("nothing was measured");
  for (auto _ : state) {
  }
  std::sort(twins.begin(), twins.end());
  std::sort(stocks.begin(), stocks.end());
  state.counters["fp32"] = twins[(twins.size() - 1) / 2].first;
  state.counters["fp32_worst"] = twins.back().first;
  state.SetLabel(twins.back().second);
  if (stocks.empty()) return;
  state.counters["over_stock"] = stocks[(stocks.size() - 1) / 2].first;
  state.counters["over_stock_worst"] = stocks.back().first;
  state.SetLabel(twins.back().second + "; " + stocks.back().second);
}

/// Keeps freed memory in the process. Otherwise glibc may request tensors of some MiB from the system each
/// time, depending on what ran before, and the page faults are half of such an operation's time.
bool keep_memory() {
#ifdef __GLIBC__
  const bool keeps = mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max()) == 1;
  return mallopt(M_MMAP_THRESHOLD, 1 << 30) == 1 && keeps;
#else
  return false;
#endif
}

/// Summarizes all other benchmarks: this source must be linked last, so that it registers last.
bool register_summary() {
  benchmark::AddCustomContext("memory", keep_memory() ? "kept" : "as the system gives it");
  benchmark::AddCustomContext("tier", tier_name(cpu_tier()));
  benchmark::AddCustomContext("hardware_tier", tier_name(hardware_cpu_tier()));
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  benchmark::RegisterBenchmark("all", summary)->Iterations(1);
  return true;
}

const bool kRegistered = register_summary();

}  // namespace

void register_twins(const std::string& name, const std::function<Twins()>& make, int rounds) {
  const auto run = [=](benchmark::State& state) {
    enable_cpu_kernels();
    const Twins twins = make();
    if (!twins.agree) return state.SkipWithError("the results differ");
    time_in_turn(state, name, twins);
  };
  benchmark::RegisterBenchmark(name.c_str(), run)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(rounds);
}

}  // namespace mantissa
