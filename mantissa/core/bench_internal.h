#pragma once

// What the benchmarks share. Each compares two programs in turn, A B A B ..., and reports quantiles of the
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

/// Whatever else runs on this machine, both programs suffer the same of it.
inline const bool kAreThreadsApart = (keep_threads_apart(), true);

struct Cost {
  double wall, cpu;  // seconds; of all threads, waiting for each other included
};

/// The mean of `repeats` runs, after one that fills the caches with what `run` uses.
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

/// Costs of two programs, the first one first in even rounds and last in odd ones: what runs second finds its
/// operands in the caches and the processor at its speed, and of two programs that are one it would win.
template <typename A, typename B>
std::pair<Cost, Cost> costs_in_turn(size_t round, const A& a, const B& b) {
  if (round % 2 == 0) {
    const Cost cost_a = a();
    return {cost_a, b()};
  }
  const Cost cost_b = b();
  return {a(), cost_b};
}

/// The value that `part` of them lie below; of at least one.
inline double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

}  // namespace mantissa
