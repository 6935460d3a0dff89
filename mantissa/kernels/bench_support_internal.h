#pragma once

// What the room's benchmarks of 16-bit operations against their float32 twins share.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa::bench {

struct Cost {
  double wall, cpu;  // seconds; of all threads, waiting for each other included
};

using Run = std::function<at::Tensor()>;

inline Cost cost_of(const Run& run, int64_t repeats) {
  benchmark::DoNotOptimize(run());  // what ran before has filled the caches with its own
  const std::clock_t cpu = std::clock();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) benchmark::DoNotOptimize(run());
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count() / static_cast<double>(repeats),
          static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC / static_cast<double>(repeats)};
}

inline double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

}  // namespace mantissa::bench
