#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace mantissa {

inline const std::vector<double> kStart = {0.75, -1.25, 0.001953125, 3.0, -0.3125};

inline at::Tensor start_parameter(at::ScalarType dtype) {
  return at::tensor(kStart, at::kDouble).to(dtype).set_requires_grad(true);
}

/// Gradients that 16-bit dtypes hold exactly, some of them 0, of changing sign, of different size by element.
inline at::Tensor gradient(int64_t step, at::ScalarType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < 5; ++i) {
    values.push_back(static_cast<double>((step * 7 + i * 5) % 11 - 5) / 16 * (i % 2 == 1 ? 1 : 0.125));
  }
  return at::tensor(values, at::kDouble).to(dtype);
}

inline void take_steps(torch::optim::Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    for (auto& group : optimizer.param_groups()) {
      for (at::Tensor& p : group.params()) p.mutable_grad() = gradient(step, p.scalar_type());
    }
    optimizer.step();
  }
}

inline std::string value_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no ValueError";
}

}  // namespace mantissa
