// Products with quantized weights, and look-ups in quantized embeddings, compared with the same in float32, in turn in one
// process.
// MANTISSA_MAX_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 simulates
// a CPU with AVX2 only; --benchmark_filter=nf4/1x selects benchmarks; --benchmark_out=FILE writes JSON.
//
//   fp32, fp32_p10, fp32_p90   wall time over that of the float32 product: the median of all rounds, with its
//                              tenth and ninetieth percentile
//   fp32_gflops                the speed of the float32 product; not for look-ups
#include <algorithm>
#include <benchmark/benchmark.h>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/quant/linear_4bit.h"
#include "mantissa/quant/linear_int8.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/packed_int8.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

using Run = std::function<at::Tensor()>;

constexpr double kSecondsOfARound = 4e-3;

/// A product or look-up in float32, and the same with a quantized weight.
struct Twins {
  Run wide, narrow;
  at::Tensor exact;      ///< what the second product has to compute
  double tolerance = 0;  ///< relative to the largest result
  double products = 0;   ///< multiplications of one run; 0 for look-ups
};

bool agree(const Twins& twins) {
  const double error = (twins.narrow().to(at::kFloat) - twins.exact).abs().max().item<double>();
  return error <= twins.tolerance * twins.exact.abs().max().item<double>();
}

void time_in_turn(benchmark::State& state, const Twins& twins) {
  const at::NoGradGuard guard;
  if (!agree(twins)) return state.SkipWithError("the result is wrong");
  const auto repeats_of = [](const Run& run) {
    return std::max<int64_t>(1, static_cast<int64_t>(kSecondsOfARound / cost_of(run, 3).wall));
  };
  const int64_t wide_repeats = repeats_of(twins.wide), narrow_repeats = repeats_of(twins.narrow);
  std::vector<double> ratios, seconds;
  for (auto _ : state) {
    const auto [wide, narrow] = costs_in_turn(
        ratios.size(), [&] { return cost_of(twins.wide, wide_repeats); },
        [&] { return cost_of(twins.narrow, narrow_repeats); });
    state.SetIterationTime(narrow.wall);
    ratios.push_back(narrow.wall / wide.wall);
    seconds.push_back(wide.wall);
  }
  state.counters["fp32"] = quantile(ratios, 0.5);
  state.counters["fp32_p10"] = quantile(ratios, 0.1);
  state.counters["fp32_p90"] = quantile(ratios, 0.9);
  if (twins.products > 0) state.counters["fp32_gflops"] = 2e-9 * twins.products / quantile(seconds, 0.5);
}

struct Shape {
  int64_t rows, out, in;
};

double products_of(const Shape& s) {
  return static_cast<double>(s.rows) * static_cast<double>(s.out) * static_cast<double>(s.in);
}

/// The forward product of a layer, or the gradient of its input. Its float32 weight is the dequantized one.
Twins product_4bit(const Shape& s, const Quantize4BitOptions& options, at::ScalarType dtype,
                   bool is_gradient) {
  const Quantized4Bit weight = quantize_4bit(at::randn({s.out, s.in}), options);
  const at::Tensor dense = dequantize_4bit(weight),
                   x = at::randn({s.rows, is_gradient ? s.out : s.in}).to(dtype);
  const at::Tensor wide_x = x.to(at::kFloat);
  Twins twins;
  if (is_gradient) {
    twins.wide = [=] { return wide_x.mm(dense); };
    twins.narrow = [=] { return matmul_4bit(x, weight); };
  } else {
    twins.wide = [=] { return at::linear(wide_x, dense); };
    twins.narrow = [=] { return linear_4bit(x, weight); };
  }
  twins.exact = twins.wide();
  // Sums in another order, and rounding of the weight and the result to 16 bits.
  twins.tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
  twins.products = products_of(s);
  return twins;
}

/// The forward product of an int8 layer, which quantizes its input. Its float32 weight is the restored one.
Twins product_int8(const Shape& s, double threshold, at::ScalarType dtype) {
  const QuantizedInt8 weight = quantize_int8(at::randn({s.out, s.in}));
  const at::Tensor dense = dequantize_int8(weight), x = at::randn({s.rows, s.in}).to(dtype);
  if (threshold > 0) x.narrow(1, 0, 5).mul_(20);
  const at::Tensor wide_x = x.to(at::kFloat);
  Twins twins;
  twins.wide = [=] { return at::linear(wide_x, dense); };
  twins.narrow = [=] { return linear_int8(x, weight, {}, threshold); };
  // What quantization of x loses is not an error here.
  const at::Tensor codes = dequantize_int8(int8_vectorwise_quant(x));
  twins.exact = at::linear(threshold > 0 ? wide_x : codes, dense);
  twins.tolerance = threshold > 0 ? 2e-2 : dtype == at::kFloat ? 1e-5 : 1e-2;
  twins.products = products_of(s);
  return twins;
}

void register_twins(const std::string& name, const std::function<Twins()>& make) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { time_in_turn(state, make()); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(31);
}

std::string name_of(const Shape& s) {
  return std::to_string(s.rows) + "x" + std::to_string(s.out) + "x" + std::to_string(s.in);
}

/// An embedding's look-up of some rows. Its float32 table is the dequantized one, whose bits the rows have.
Twins look_up(int64_t count, const PackedDataPtr& data) {
  const at::Tensor table = make_packed_weight(data, at::kFloat), dense = data->dequantize(at::kFloat),
                   rows = at::randint(data->sizes()[0], {count}, at::kLong);
  Twins twins;
  twins.wide = [=] { return at::embedding(dense, rows); };
  twins.narrow = [=] { return at::embedding(table, rows); };
  twins.exact = twins.wide();
  return twins;
}

void register_look_ups(int64_t count) {
  constexpr int64_t kRows = 32000, kWidth = 1024;
  const auto add = [&](const std::string& kind, const std::function<PackedDataPtr(const at::Tensor&)>& pack) {
    register_twins(kind + "/" + name_of({count, kRows, kWidth}), [=] {
      return look_up(count, pack(at::randn({kRows, kWidth})));
    });
  };
  add("nf4-embedding", [](const at::Tensor& table) { return pack_4bit(table, {}, "table"); });
  add("nf4-dq-embedding",
      [](const at::Tensor& table) { return pack_4bit(table, {.compress_statistics = true}, "table"); });
  add("int8-embedding", [](const at::Tensor& table) { return pack_int8(table, 0, "table"); });
}

/// Keeps freed memory in the process: page faults would be half of the time of a small product.
void keep_memory() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
#endif
}

bool register_all() {
  keep_memory();
  benchmark::AddCustomContext("tier", tier_name(cpu_tier()));
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  const std::vector<Shape> shapes = {{1, 1024, 1024},  {1, 4096, 4096},   {3, 4096, 4096},  {32, 1024, 1024},
                                     {32, 4096, 4096}, {512, 1024, 1024}, {512, 4096, 4096}};
  const Quantize4BitOptions nf4{}, fp4{.format = Format::kFP4}, nested{.compress_statistics = true};
  for (const Shape& s : shapes) {
    const auto add = [&](const std::string& kind, const Quantize4BitOptions& options, at::ScalarType dtype,
                         bool is_gradient) {
      register_twins(kind + "/" + name_of(s), [=] { return product_4bit(s, options, dtype, is_gradient); });
    };
    add("nf4", nf4, at::kFloat, false);
    add("nf4-dq", nested, at::kFloat, false);
    add("fp4", fp4, at::kFloat, false);
    add("nf4-bf16", nf4, at::kBFloat16, false);
    add("nf4-fp16", nf4, at::kHalf, false);
    const auto add_int8 = [&](const std::string& kind, double threshold, at::ScalarType dtype) {
      register_twins(kind + "/" + name_of(s), [=] { return product_int8(s, threshold, dtype); });
    };
    add_int8("int8", 0, at::kFloat);
    add_int8("int8-fp16", 0, at::kHalf);
    add_int8("int8-outliers", 6, at::kFloat);
    if (s.rows >= 32) add("nf4-gradient", nf4, at::kFloat, true);
    if (s.rows >= 32) add("nf4-gradient-bf16", nf4, at::kBFloat16, true);
  }
  for (const int64_t count : {1, 64, 4096}) register_look_ups(count);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
