// 16-bit products compared with the same product in float32, as described in twins_bench_internal.h.
// MANTISSA_MAX_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
// simulates a CPU with AVX2 only; --benchmark_filter=product/bf16/256 selects benchmarks;
// --benchmark_out=FILE writes JSON.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <limits>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/aten/twins_bench_internal.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa {
namespace {

struct Shape {
  int64_t batch, m, n, k;
};

/// Makes a contiguous operand (N in the names) or a transposed view (T). Batch 0 makes a two-dimensional
/// matrix.
at::Tensor operand(int64_t batch, int64_t rows, int64_t cols, bool transposed, at::ScalarType dtype) {
  if (transposed) std::swap(rows, cols);
  at::Tensor x = (batch == 0 ? at::randn({rows, cols}) : at::randn({batch, rows, cols})).to(dtype);
  return transposed ? x.transpose(-2, -1) : x;
}

Twins twins(const Shape& shape, at::ScalarType dtype, bool a_transposed, bool b_transposed) {
  const auto [batch, m, n, k] = shape;
  const at::Tensor a = operand(batch, m, k, a_transposed, dtype),
                   b = operand(batch, k, n, b_transposed, dtype);
  const at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  Twins twins;
  twins.wide = [=] { return at::matmul(wide_a, wide_b); };
  twins.narrow = [=] { return at::matmul(a, b); };
  const at::Tensor wanted = twins.wide();
  twins.agree = (twins.narrow().to(at::kFloat) - wanted).abs().max().item<double>() <=
                0.01 * wanted.abs().max().item<double>();
  twins.products = static_cast<double>(std::max<int64_t>(batch, 1) * m * n * k);
  kernels::Gemm g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.batch = std::max<int64_t>(batch, 1);
  g.a.element = dtype == at::kHalf ? kernels::Element::kFloat16 : kernels::Element::kBFloat16;
  const Kernel kernel = kernel_for(family_of(g), g.a.element);
  twins.kernel = kernel_name(kernel);
  // A kernel that is a hundred times slower than float32 may take minutes.
  double budget = std::numeric_limits<double>::infinity();
  const auto times = time_kernels({{family_of(g), dtype, {kernel, kLibtorchs}}}, budget).front();
  twins.with_stock = twins.products <= 1 << 26 || times[1].seconds < 4 * times[0].seconds;
  return twins;
}

/// Measures what a float32 product pays for the check that passes it on to libtorch.
void pass_through(benchmark::State& state) {
  const at::Tensor a = at::randn({8, 8});
  const Run run = [&] { return at::matmul(a, a); };
  std::vector<double> added;
  for (auto _ : state) {
    disable_cpu_kernels();
    const Cost without = cost_of(run, 2000);
    enable_cpu_kernels();
    const Cost with = cost_of(run, 2000);
    state.SetIterationTime(with.wall);
    added.push_back(with.wall - without.wall);
  }
  state.counters["added_ns"] = 1e9 * quantile(added, 0.5);
}

bool register_all() {
  // Cubes and odd sizes, then the products of a gpt of width 256 and 768 (512 tokens), of small batches, of
  // one token, and of attention (batch * heads matrices).
  const std::vector<Shape> shapes = {
      {0, 256, 256, 256},  {0, 512, 512, 512},  {0, 1024, 1024, 1024}, {0, 2048, 2048, 2048},
      {0, 255, 257, 259},  {0, 1023, 513, 771}, {0, 512, 256, 256},    {0, 512, 768, 256},
      {0, 512, 1024, 256}, {0, 512, 256, 1024}, {0, 256, 256, 512},    {0, 512, 768, 768},
      {0, 512, 3072, 768}, {0, 512, 768, 3072}, {0, 768, 3072, 512},   {0, 64, 768, 768},
      {0, 32, 1024, 1024}, {0, 8, 768, 768},    {0, 2, 768, 768},      {0, 1, 768, 3072},
      {0, 512, 1, 768},    {0, 512, 10, 64},    {0, 64, 64, 64},       {0, 16, 16, 16},
      {16, 128, 128, 64},  {48, 128, 64, 128},  {256, 16, 16, 16}};
  for (const Shape& s : shapes)
    for (const auto dtype : {at::kBFloat16, at::kHalf})
      for (const std::string layout : {"NN", "NT", "TN"}) {
        std::string size = std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
        if (s.batch > 0) size = std::to_string(s.batch) + "x" + size;
        const std::string name =
            std::string("product/") + (dtype == at::kHalf ? "fp16/" : "bf16/") + size + "/" + layout;
        register_twins(name, [=] { return twins(s, dtype, layout[0] == 'T', layout[1] == 'T'); });
      }
  benchmark::RegisterBenchmark("float32_passes_by", pass_through)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(51);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
