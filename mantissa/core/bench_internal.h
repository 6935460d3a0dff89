#pragma once

// Shared by the benchmarks. Each compares two programs in turn, A B A B ..., and reports quantiles of the
// ratios.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <utility>
#include <vector>

#include "mantissa/core/threads_apart.h"

namespace mantissa {

/// Keeps threads apart, so that other programs on this machine disturb both programs equally.
inline const bool kAreThreadsApart = (keep_threads_apart(), true);

struct Cost {
  double wall, cpu;  // seconds; of all threads, including the time they wait for each other
};

/// Returns the mean of `repeats` runs, after one run that fills the caches with the data `run` uses.
template <typename Run>
Cost cost_of(const Run& run, int64_t repeats) {
  benchmark::DoNotOptimize(run());
  const std::clock_t cpu = std::clock();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) benchmark::DoNotOptimize(run());
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count() / static_cast<double>(repeats),
          static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / static_cast<double>(repeats)};
}

/// Returns the costs of two programs. The first one runs first in even rounds and last in odd ones: the
/// program that runs second finds its operands in the caches and the processor at full speed, and would win
/// even against itself.
template <typename A, typename B>
std::pair<Cost, Cost> costs_in_turn(size_t round, const A& a, const B& b) {
  if (round % 2 == 0) {
    const Cost cost_a = a();
    return {cost_a, b()};
  }
  const Cost cost_b = b();
  return {a(), cost_b};
}

/// Returns the value below which a fraction `part` of `values` lies; `values` must not be empty.
inline double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

}  // namespace mantissa
