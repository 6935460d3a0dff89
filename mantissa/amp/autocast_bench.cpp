// Measures the cost of an autocast region.
#include <benchmark/benchmark.h>

#include "mantissa/amp/autocast.h"

namespace mantissa {
namespace {

void BM_AutocastRegion(benchmark::State& state) {
  for (auto _ : state) {
    const Autocast region(at::kCPU);
    benchmark::DoNotOptimize(region.enabled());
  }
}
BENCHMARK(BM_AutocastRegion);

}  // namespace
}  // namespace mantissa
