// GELU and its gradient in 16 bits compared with float32, as described in twins_bench_internal.h.
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include "mantissa/kernels/aten/twins_bench_internal.h"

namespace mantissa {
namespace {

Twins twins(int64_t size, at::ScalarType dtype, const std::string& approximate, bool backward) {
  const auto run_of = [=](const at::Tensor& x) -> Run {
    const at::Tensor gradient = at::ones_like(x);
    if (backward) return [=] { return at::gelu_backward(gradient, x, approximate); };
    return [=] { return at::gelu(x, approximate); };
  };
  const at::Tensor x = at::randn({size}).to(dtype);
  Twins twins;
  twins.narrow = run_of(x);
  twins.wide = run_of(x.to(at::kFloat));
  twins.agree = (twins.narrow().to(at::kFloat) - twins.wide()).abs().max().item<double>() <= 0.05;
  return twins;
}

bool register_all() {
  for (const std::string approximate : {"none", "tanh"})
    for (const bool backward : {false, true})
      for (const auto dtype : {at::kBFloat16, at::kHalf})
        for (const int64_t size : {1 << 10, 1 << 14, 1 << 19}) {
          const std::string name = std::string("gelu/") + (dtype == at::kHalf ? "fp16/" : "bf16/") +
                                   approximate + (backward ? "/backward/" : "/forward/") +
                                   std::to_string(size);
          register_twins(name, [=] { return twins(size, dtype, approximate, backward); });
        }
  return true;
}

const bool kRegistered = register_all();

}  // namespace
}  // namespace mantissa
