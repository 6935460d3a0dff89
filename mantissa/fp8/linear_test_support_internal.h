#pragma once

// For the tests of linear_fp8().

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/fp8/linear_fp8.h"

namespace mantissa::fp8 {

inline std::shared_ptr<Fp8LinearState> state_of(Fp8Recipe recipe, uint64_t seed = 0) {
  return std::make_shared<Fp8LinearState>(std::move(recipe), seed);
}

inline const std::vector<std::pair<std::string, Fp8Recipe>>& recipes() {
  static const std::vector<std::pair<std::string, Fp8Recipe>> all = {
      {"delayed", DelayedScaling{.amax_history_len = 4}},
      {"current", Float8CurrentScaling{}},
      {"block", Float8BlockScaling{}},
      {"mxfp8", MXFP8BlockScaling{}},
      {"mxfp8 2d", MXFP8BlockScaling{.enable_2d_quantization = true}},
      {"nvfp4", NVFP4BlockScaling{}},
      {"nvfp4 plain", NVFP4BlockScaling{false, false, false}}};
  return all;
}

struct Pass {
  at::Tensor y, dx, dw, db;
};

inline Pass pass(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, const at::Tensor& dy,
                 const std::shared_ptr<Fp8LinearState>& state, std::optional<bool> is_first = {}) {
  const auto leaf = [](const at::Tensor& t) {
    return t.defined() ? t.detach().clone().set_requires_grad(true) : at::Tensor();
  };
  const at::Tensor x_leaf = leaf(x), w_leaf = leaf(w), b_leaf = leaf(b);
  const at::Tensor y = linear_fp8(x_leaf, w_leaf, b_leaf, state, is_first);
  y.backward(dy);
  return {y.detach(), x_leaf.grad(), w_leaf.grad(), b.defined() ? b_leaf.grad() : at::Tensor()};
}

}  // namespace mantissa::fp8
