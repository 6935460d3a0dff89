// 16-bit products against the same product in float32: both in turn, A B A B ..., and the median of the
// ratios, so that the machine's drift hits both alike. Beside them libtorch's own 16-bit kernel, where it
// ends within a second or so. Every result is checked before it is timed. MANTISSA_MAX_ISA=avx2
// ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 makes a larger CPU an
// ordinary one; --benchmark_filter=bf16/256 picks, --benchmark_out=FILE writes JSON.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/gemm.h"
#include "mantissa/kernels/overrides.h"
#include "mantissa/kernels/product_choice_internal.h"

namespace mantissa {
namespace {

using Run = std::function<at::Tensor()>;

struct Shape {
  int64_t batch, m, n, k;
};

/// The ratios of all shapes so far, for the last line.
std::vector<double>& all_ratios() {
  static std::vector<double> ratios;
  return ratios;
}
std::vector<double>& all_over_stock() {
  static std::vector<double> ratios;
  return ratios;
}

/// N: as it is; T: a transposed view. batch 0: two matrices.
at::Tensor operand(int64_t batch, int64_t rows, int64_t cols, bool transposed, at::ScalarType dtype) {
  if (transposed) std::swap(rows, cols);
  at::Tensor x = (batch == 0 ? at::randn({rows, cols}) : at::randn({batch, rows, cols})).to(dtype);
  return transposed ? x.transpose(-2, -1) : x;
}

void compare(benchmark::State& state, Shape shape, at::ScalarType dtype, bool a_transposed,
             bool b_transposed) {
  enable_cpu_kernels();
  const auto [batch, m, n, k] = shape;
  const at::Tensor a = operand(batch, m, k, a_transposed, dtype),
                   b = operand(batch, k, n, b_transposed, dtype);
  const at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  const Run twin = [&] { return at::matmul(wide_a, wide_b); }, product = [&] { return at::matmul(a, b); };
  const auto ours = [&](int64_t repeats) { return cost_of(product, repeats); };
  const auto stock = [&](int64_t repeats) {
    disable_cpu_kernels();
    const Cost cost = cost_of(product, repeats);
    enable_cpu_kernels();
    return cost;
  };

  const double scale = twin().abs().max().item<double>();
  if ((product().to(at::kFloat) - twin()).abs().max().item<double>() > 0.01 * scale) {
    state.SkipWithError("the products differ");
    return;
  }
  const double products = static_cast<double>(std::max<int64_t>(batch, 1) * m * n * k);
  cpu::Gemm g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.batch = std::max<int64_t>(batch, 1);
  g.a.element = dtype == at::kHalf ? cpu::Element::kFloat16 : cpu::Element::kBFloat16;
  const bool is_ours = products::is_faster_here(g, /*is_dot=*/false);
  // A hundred times slower than float32 may be minutes.
  const bool with_stock = !is_ours || products <= 1 << 26;

  const int64_t repeats = std::max<int64_t>(1, static_cast<int64_t>(2e-3 / cost_of(twin, 3).wall));
  const int64_t stock_repeats =
      with_stock ? std::clamp<int64_t>(static_cast<int64_t>(2e-3 / stock(1).wall), 1, repeats) : 0;
  std::vector<double> ratios, cpu_ratios, stock_ratios, over_stock, twin_seconds;
  for (auto _ : state) {
    const Cost base = cost_of(twin, repeats);
    // Slow ones need no many rounds: three digits are not asked of a factor of a hundred.
    const bool stock_now = with_stock && (stock_ratios.size() < 3 || stock_ratios.back() < 10);
    const auto [mine, theirs] = costs_in_turn(
        ratios.size(), [&] { return ours(repeats); },
        [&] { return stock_now ? stock(stock_repeats) : Cost{}; });
    state.SetIterationTime(mine.wall);
    ratios.push_back(mine.wall / base.wall);
    cpu_ratios.push_back(mine.cpu / base.cpu);
    twin_seconds.push_back(base.wall);
    if (stock_now) {
      stock_ratios.push_back(theirs.cpu / base.cpu);
      over_stock.push_back(mine.cpu / theirs.cpu);
    }
  }
  state.counters["fp32"] = quantile(ratios, 0.5);
  state.counters["fp32_p10"] = quantile(ratios, 0.1);
  state.counters["fp32_p90"] = quantile(ratios, 0.9);
  state.counters["fp32_cpu"] = quantile(cpu_ratios, 0.5);
  state.counters["fp32_gflops"] = 2e-9 * products / quantile(twin_seconds, 0.5);
  all_ratios().push_back(quantile(ratios, 0.5));
  if (with_stock) {
    state.counters["stock"] = quantile(stock_ratios, 0.5);
    state.counters["over_stock"] = quantile(over_stock, 0.5);
    all_over_stock().push_back(quantile(over_stock, 0.5));
  }
  state.SetLabel(is_ours ? "" : "libtorch's");
}

void summary(benchmark::State& state) {
  if (all_ratios().empty()) {
    state.SkipWithError("nothing was measured");
    return;
  }
  for (auto _ : state) {
  }
  state.counters["fp32"] = quantile(all_ratios(), 0.5);
  state.counters["fp32_worst"] = quantile(all_ratios(), 1);
  if (!all_over_stock().empty()) state.counters["over_stock_worst"] = quantile(all_over_stock(), 1);
}

/// What a float32 product pays for passing the 16-bit kernels by.
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
  benchmark::AddCustomContext("tier", tier_name(cpu_tier()));
  benchmark::AddCustomContext("hardware_tier", tier_name(hardware_cpu_tier()));
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  // Cubes and odd sizes, then the products of a gpt of 256 and of 768 wide (512 tokens), of small batches, of
  // one token, of attention (batch * heads matrices).
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
        const std::string name = std::string(dtype == at::kHalf ? "fp16/" : "bf16/") + size + "/" + layout;
        benchmark::RegisterBenchmark(
            name.c_str(),
            [=](benchmark::State& state) { compare(state, s, dtype, layout[0] == 'T', layout[1] == 'T'); })
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond)
            ->Iterations(21);
      }
  benchmark::RegisterBenchmark("all", summary)->Iterations(1);
  benchmark::RegisterBenchmark("float32_passes_by", pass_through)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(51);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
