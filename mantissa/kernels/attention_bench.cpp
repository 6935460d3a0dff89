// 16-bit attention against the same in float32, both in turn, as gemm_bench.cpp does it and with its
// environment. Results and gradients are checked before anything is timed. --benchmark_filter=bf16/train
// picks.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "mantissa/core/bench_internal.h"
#include "mantissa/kernels/overrides.h"

namespace mantissa {
namespace {

using Run = std::function<at::Tensor()>;

struct Shape {
  int64_t batch, heads, tokens, width;
};

enum class Kind : uint8_t { kCausal, kFull, kMask, kDropout };

/// Query, key and value as views of one projection, and the gradient of the result.
struct Inputs {
  std::vector<at::Tensor> qkv;
  std::optional<at::Tensor> mask;
  at::Tensor grad_out;
  Kind kind;
};

Inputs inputs(const Shape& s, Kind kind, bool trains, at::ScalarType dtype, at::ScalarType computed) {
  at::manual_seed(1);
  const auto values = [&](int64_t columns) {
    return at::randn({s.batch, s.tokens, columns}).to(dtype).to(computed);
  };
  const auto split = [&](const at::Tensor& x) {
    return x.view({s.batch, s.tokens, s.heads, s.width}).transpose(1, 2);
  };
  Inputs in{{}, {}, {}, kind};
  for (const at::Tensor& x : values(3 * s.heads * s.width).chunk(3, -1))
    in.qkv.push_back(split(x).detach().set_requires_grad(trains));
  in.grad_out = split(values(s.heads * s.width));
  if (kind == Kind::kMask) {
    const at::Tensor hidden = at::ones({s.tokens, s.tokens}, at::kBool).triu(1);
    in.mask = at::zeros({s.tokens, s.tokens}, computed).masked_fill_(hidden, -INFINITY);
  }
  return in;
}

at::Tensor forward(const Inputs& in) {
  return at::scaled_dot_product_attention(in.qkv[0], in.qkv[1], in.qkv[2], in.mask,
                                          in.kind == Kind::kDropout ? 0.1 : 0.0, in.kind == Kind::kCausal);
}

std::vector<at::Tensor> gradients(const Inputs& in) {
  return torch::autograd::grad({forward(in)}, in.qkv, {in.grad_out});
}

void compare(benchmark::State& state, const Shape& shape, Kind kind, bool trains, at::ScalarType dtype) {
  enable_cpu_kernels();
  const Inputs low = inputs(shape, kind, trains, dtype, dtype),
               wide = inputs(shape, kind, trains, dtype, at::kFloat);
  const auto near = [](const at::Tensor& x, const at::Tensor& y) {
    return (x.to(at::kFloat) - y).norm().item<double>() <= 0.01 * y.norm().item<double>();
  };
  // The same seed: dropout draws the same.
  at::manual_seed(2);
  const at::Tensor out = forward(low);
  std::vector<at::Tensor> grads;
  if (trains) grads = gradients(low);
  at::manual_seed(2);
  bool right = near(out, forward(wide));
  if (trains) {
    const std::vector<at::Tensor> wanted = gradients(wide);
    for (size_t i = 0; i < grads.size(); ++i) right = right && near(grads[i], wanted[i]);
  }
  if (!right) return state.SkipWithError("the results differ");

  const auto run_of = [&](const Inputs& in) -> Run {
    if (trains) return [&in] { return gradients(in)[0]; };
    return [&in] { return forward(in); };
  };
  const Run twin = run_of(wide), ours = run_of(low);
  const auto stock = [&](int64_t repeats) {
    disable_cpu_kernels();
    const Cost cost = cost_of(ours, repeats);
    enable_cpu_kernels();
    return cost;
  };
  const int64_t repeats = std::max<int64_t>(1, static_cast<int64_t>(5e-3 / cost_of(twin, 2).wall));
  std::vector<double> ratios, stock_ratios, twin_us;
  for (auto _ : state) {
    const Cost base = cost_of(twin, repeats), mine = cost_of(ours, repeats);
    state.SetIterationTime(mine.wall);
    ratios.push_back(mine.cpu / base.cpu);
    twin_us.push_back(base.cpu * 1e6);
    // Slow ones need no many rounds.
    if (stock_ratios.size() < 5 || stock_ratios.back() < 2)
      stock_ratios.push_back(stock(std::max<int64_t>(1, repeats / 4)).cpu / base.cpu);
  }
  state.counters["fp32_cpu"] = quantile(ratios, 0.5);
  state.counters["fp32_p10"] = quantile(ratios, 0.1);
  state.counters["fp32_p90"] = quantile(ratios, 0.9);
  state.counters["stock"] = quantile(stock_ratios, 0.5);
  state.counters["fp32_us"] = quantile(twin_us, 0.5);
}

bool register_all() {
  // Those of a gpt of 256 wide (4 sequences of 128 tokens, 8 or 4 heads), then of one of 768.
  const std::vector<Shape> shapes = {{4, 8, 128, 32},  {4, 4, 128, 64},  {4, 12, 128, 64},
                                     {1, 12, 256, 64}, {1, 12, 512, 64}, {1, 12, 1024, 64}};
  const std::vector<std::pair<const char*, Kind>> kinds = {
      {"causal", Kind::kCausal}, {"full", Kind::kFull}, {"mask", Kind::kMask}, {"dropout", Kind::kDropout}};
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool trains : {false, true})
      for (const auto& [name, kind] : kinds)
        for (const Shape& s : shapes)
          benchmark::RegisterBenchmark(
              (std::string(dtype == at::kHalf ? "fp16/" : "bf16/") + (trains ? "train/" : "forward/") + name +
               "/" + std::to_string(s.batch) + "x" + std::to_string(s.heads) + "x" +
               std::to_string(s.tokens) + "x" + std::to_string(s.width))
                  .c_str(),
              [=, kind = kind](benchmark::State& state) { compare(state, s, kind, trains, dtype); })
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond)
              ->Iterations(21);
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
