#pragma once

#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/iteration_tracker.h"
#include "mantissa/core/host_reads_internal.h"
#include "mantissa/core/step_scaling.h"
#include "mantissa/core/test_support_internal.h"

// Helpers for the tests of this room.
namespace mantissa {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline at::Tensor parameter(const at::Tensor& value, const at::Tensor& gradient) {
  auto p = value.clone().requires_grad_();
  p.mutable_grad() = gradient.clone();
  return p;
}

/// Returns a parameter of ones with this gradient.
inline at::Tensor with_grad(const std::vector<float>& gradient, at::ScalarType dtype = at::kFloat) {
  const auto g = torch::tensor(gradient).to(dtype);
  return parameter(torch::ones_like(g), g);
}

inline void set_grad(const at::Tensor& p, float gradient) {
  p.mutable_grad() = torch::full_like(p, gradient);
}

/// Returns a scaler that has already scaled something.
inline GradScaler used_scaler(const GradScalerOptions& options = {}) {
  GradScaler scaler(at::kCPU, options);
  scaler.scale(torch::zeros({}));
  return scaler;
}

/// A scaler and the tracker of its iterations.
struct TrackedScaler : GradScaler, IterationTracker {
  explicit TrackedScaler(const GradScalerOptions& options = {})
      : GradScaler(at::kCPU, options), IterationTracker(static_cast<GradScaler&>(*this)) {}
};

/// One parameter of two elements, and its optimizer.
struct TrackedNet {
  explicit TrackedNet(float value = 1) : w(torch::full({2}, value).set_requires_grad(true)), sgd({w}, 0.5) {}
  at::Tensor w;
  torch::optim::SGD sgd;
};

/// Runs a backward pass whose begin and end the tracker knows.
inline void tracked_backward(TrackedScaler& scaler, const at::Tensor& loss) {
  scaler.begin_backward();
  scaler.scale(loss).backward();
  scaler.end_backward();
}

/// Runs one iteration with this gradient; returns whether the optimizer stepped.
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

/// Records what a self-unscaling optimizer receives, for tests to check after the step; the step itself reads
/// nothing.
class SelfUnscaling : public torch::optim::Optimizer, public StepSupportsAmpScaling {
 public:
  using Optimizer::Optimizer;
  at::Tensor step(LossClosure) final {
    const at::NoGradGuard no_grad;
    seen_scale = grad_scale.defined() ? grad_scale.clone() : at::Tensor();
    seen_found_inf = found_inf.clone();
    scale_address = grad_scale.defined() ? grad_scale.const_data_ptr() : nullptr;
    if (fails) throw std::runtime_error("optimizer failed");
    std::vector<size_t> with_gradients;
    for (size_t i = 0; i < params().size(); ++i) {
      const at::Tensor& gradient = params()[i].grad();
      if (gradient.defined() && !gradient.is_sparse()) with_gradients.push_back(i);
    }
    if (!with_gradients.empty()) update(with_gradients);
    return {};
  }
  at::Tensor seen_scale, seen_found_inf;
  const void* scale_address = nullptr;
  bool fails = false;

 protected:
  virtual void update(const std::vector<size_t>& with_gradients) = 0;
  const std::vector<at::Tensor>& params() const { return param_groups_[0].params(); }
  std::vector<at::Tensor> gradients(const std::vector<size_t>& which) const {
    std::vector<at::Tensor> out;
    for (const size_t i : which) out.push_back(params()[i].grad());
    return out;
  }
  static std::vector<at::Tensor> pick(const std::vector<at::Tensor>& all, const std::vector<size_t>& which) {
    std::vector<at::Tensor> out;
    for (const size_t i : which) out.push_back(all[i]);
    return out;
  }
  static std::optional<at::Tensor> optional(const at::Tensor& t) {
    return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
  }
};

/// AdamW over libtorch's fused kernel, like Python's fused=True.
class KernelAdamW final : public SelfUnscaling {
 public:
  explicit KernelAdamW(std::vector<at::Tensor> parameters)
      : SelfUnscaling(std::move(parameters), std::make_unique<torch::optim::AdamWOptions>()) {
    for (const auto& p : params()) {
      moments.push_back(torch::zeros_like(p));
      squares.push_back(torch::zeros_like(p));
      steps.push_back(torch::zeros({}, p.options().dtype(at::kFloat)));
    }
  }
  std::vector<at::Tensor> moments, squares, steps;

 private:
  void update(const std::vector<size_t>& which) override {
    // A skipped step does not count: the kernel leaves the step counters to the caller.
    for (const size_t i : which) steps[i] += 1 - found_inf;
    at::_fused_adamw_(pick(params(), which), gradients(which), pick(moments, which), pick(squares, which), {},
                      pick(steps, which), 1e-2, 0.9, 0.999, 1e-2, 1e-8, false, false, optional(grad_scale),
                      optional(found_inf));
  }
};

/// SGD without momentum over libtorch's fused kernel.
class KernelSgd final : public SelfUnscaling {
 public:
  KernelSgd(std::vector<at::Tensor> parameters, double lr)
      : SelfUnscaling(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(lr)), lr_(lr) {}

 private:
  void update(const std::vector<size_t>& which) override {
    at::_fused_sgd_(pick(params(), which), gradients(which), {}, 0.0, 0.0, lr_, 0.0, false, false, true,
                    optional(grad_scale), optional(found_inf));
  }
  double lr_;
};

/// Returns a sparse tensor with two rows. Every value is at index 0, so several values are duplicates.
inline at::Tensor sparse(const std::vector<float>& values, at::ScalarType dtype = at::kFloat) {
  const auto indices = torch::zeros({1, static_cast<int64_t>(values.size())}, at::kLong);
  return torch::sparse_coo_tensor(indices, torch::tensor(values).to(dtype), {2});
}

}  // namespace mantissa
