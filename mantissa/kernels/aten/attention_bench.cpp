// 16-bit attention compared with float32, as described in twins_bench_internal.h.
// --benchmark_filter=attention/bf16/train selects some of the benchmarks.
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

#include "mantissa/kernels/aten/twins_bench_internal.h"

namespace mantissa {
namespace {

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

Twins twins(const Shape& shape, Kind kind, bool trains, at::ScalarType dtype) {
  const Inputs low = inputs(shape, kind, trains, dtype, dtype),
               wide = inputs(shape, kind, trains, dtype, at::kFloat);
  const auto near = [](const at::Tensor& x, const at::Tensor& y) {
    return (x.to(at::kFloat) - y).norm().item<double>() <= 0.01 * y.norm().item<double>();
  };
  const auto run_of = [&](const Inputs& in) -> Run {
    if (trains) return [in] { return gradients(in)[0]; };
    return [in] { return forward(in); };
  };
  Twins twins;
  twins.narrow = run_of(low);
  twins.wide = run_of(wide);
  // Dropout draws the same numbers from the same seed.
  at::manual_seed(2);
  const at::Tensor out = forward(low);
  std::vector<at::Tensor> grads;
  if (trains) grads = gradients(low);
  at::manual_seed(2);
  twins.agree = near(out, forward(wide));
  if (trains) {
    const std::vector<at::Tensor> wanted = gradients(wide);
    for (size_t i = 0; i < grads.size(); ++i) twins.agree = twins.agree && near(grads[i], wanted[i]);
  }
  return twins;
}

bool register_all() {
  // The shapes of a gpt of width 256 (4 sequences of 128 tokens, 8 or 4 heads), then of one of width 768.
  const std::vector<Shape> shapes = {{4, 8, 128, 32},  {4, 4, 128, 64},  {4, 12, 128, 64},
                                     {1, 12, 256, 64}, {1, 12, 512, 64}, {1, 12, 1024, 64}};
  const std::vector<std::pair<const char*, Kind>> kinds = {
      {"causal", Kind::kCausal}, {"full", Kind::kFull}, {"mask", Kind::kMask}, {"dropout", Kind::kDropout}};
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool trains : {false, true})
      for (const auto& [name_of_kind, kind] : kinds)
        for (const Shape& s : shapes) {
          const std::string name = std::string("attention/") + (dtype == at::kHalf ? "fp16/" : "bf16/") +
                                   (trains ? "train/" : "forward/") + name_of_kind + "/" +
                                   std::to_string(s.batch) + "x" + std::to_string(s.heads) + "x" +
                                   std::to_string(s.tokens) + "x" + std::to_string(s.width);
          register_twins(
              name, [=, kind = kind] { return twins(s, kind, trains, dtype); }, 11);
        }
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
