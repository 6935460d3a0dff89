#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/amp/grad_scaler.h"

// What the tests of this room share.
namespace mantissa {

/// What libtorch would warn of in this scope, once-only warnings included.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;

 private:
  c10::WarningUtils::WarnAlways always_;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline at::Tensor parameter(const at::Tensor& value, const at::Tensor& gradient) {
  auto p = value.clone().requires_grad_();
  p.mutable_grad() = gradient.clone();
  return p;
}

/// Ones with this gradient.
inline at::Tensor with_grad(const std::vector<float>& gradient, at::ScalarType dtype = at::kFloat) {
  const auto g = torch::tensor(gradient).to(dtype);
  return parameter(torch::ones_like(g), g);
}

inline void set_grad(const at::Tensor& p, float gradient) {
  p.mutable_grad() = torch::full_like(p, gradient);
}

/// A scaler that has scaled something already.
inline GradScaler used_scaler(const GradScalerOptions& options = {}) {
  GradScaler scaler(at::kCPU, options);
  scaler.scale(torch::zeros({}));
  return scaler;
}

/// One iteration with this gradient; returns whether the optimizer stepped.
inline bool iterate(GradScaler& scaler, torch::optim::Optimizer& optimizer, float gradient) {
  scaler.scale(torch::zeros({}));
  for (const auto& p : optimizer.param_groups()[0].params()) set_grad(p, gradient);
  const bool stepped = scaler.step(optimizer);
  scaler.update();
  return stepped;
}

template <typename Error = c10::Error, typename F>
inline void expect_error(const F& f, const std::string& text) {
  try {
    f();
    ADD_FAILURE() << "no error; wanted: " << text;
  } catch (const Error& e) {
    EXPECT_THAT(e.what_without_backtrace(), testing::HasSubstr(text));
  }
}

/// Two rows; every value at index 0, so that more than one are duplicates.
inline at::Tensor sparse(const std::vector<float>& values, at::ScalarType dtype = at::kFloat) {
  const auto indices = torch::zeros({1, static_cast<int64_t>(values.size())}, at::kLong);
  return torch::sparse_coo_tensor(indices, torch::tensor(values).to(dtype), {2});
}

}  // namespace mantissa
