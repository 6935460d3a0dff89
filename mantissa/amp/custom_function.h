#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/tree.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace mantissa {

struct CustomForwardOptions {
  /// Runs forward and backward with autocast off, on inputs of this dtype. Unset: both follow the enclosing
  /// region.
  std::optional<c10::ScalarType> cast_inputs = std::nullopt;
};

/// Construct it first in the forward() of a torch::autograd::Function that is used under autocast;
/// corresponds to torch's `@custom_fwd`. It records the autocast state for CustomBackward and lets the
/// function choose its own dtype:
///
///   static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a_in, const at::Tensor& b_in) {
///     const CustomForward scope(ctx, at::kCPU, {.cast_inputs = at::kFloat});
///     const auto [a, b] = scope.inputs(a_in, b_in);
///     ctx->save_for_backward({a, b});
///     return a.mm(b);  // float32, also inside a bf16 region
///   }
///
/// With cast_inputs inside an enabled region of `device_type`, inputs() casts and autocast is off until the
/// scope ends. With cast_inputs anywhere else nothing is cast and nothing changes. Without cast_inputs
/// nothing is cast, and forward's operations follow the region. Autograd casts the gradient of a cast input
/// back.
///
/// Errors:  c10::ValueError for a cast_inputs that is not a floating-point dtype; c10::Error if the device
///          has no autocast.
/// Example: custom_function_test.cpp, CustomFunction.AC35_CastInputsRunsInFloat32WithAutocastOff
class CustomForward {
 public:
  CustomForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type,
                const CustomForwardOptions& options = {});

  /// Returns the inputs that forward has to use, as a tuple of tensors and trees of tensors (see
  /// map_tensors). Floating-point tensors on `device_type` below float64 are cast; all others are passed
  /// through.
  template <typename... Trees>
  std::tuple<Trees...> inputs(const Trees&... trees) const {
    return {map_tensors(trees, [this](const at::Tensor& t) { return cast(t); })...};
  }

 private:
  at::Tensor cast(const at::Tensor& input) const;

  c10::DeviceType device_type_;
  std::optional<c10::ScalarType> cast_to_;  // set only if there is something to cast
  std::optional<Autocast> off_;
};

/// Construct it first in backward(); corresponds to torch's `@custom_bwd`. Until the scope ends, autocast is
/// in the state that forward's operations had, whether or not backward() is called inside a region, and also
/// on autograd's own threads.
///
/// Errors:  c10::Error if forward() made no CustomForward with this context.
class CustomBackward {
 public:
  explicit CustomBackward(const torch::autograd::AutogradContext* ctx);

 private:
  Autocast state_;
};

}  // namespace mantissa
