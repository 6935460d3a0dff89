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
  /// Run forward and backward with autocast off, on inputs of this dtype; unset: as the region around it
  /// says.
  std::optional<c10::ScalarType> cast_inputs = std::nullopt;
};

/// Put first into the forward() of a torch::autograd::Function that is used under autocast: torch's
/// `@custom_fwd`. Notes the autocast state for CustomBackward, and makes the function's dtype its own choice:
///
///   static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a_in, const at::Tensor& b_in) {
///     const CustomForward scope(ctx, at::kCPU, {.cast_inputs = at::kFloat});
///     const auto [a, b] = scope.inputs(a_in, b_in);
///     ctx->save_for_backward({a, b});
///     return a.mm(b);  // float32, also inside a bf16 region
///   }
///
/// With cast_inputs inside an enabled region of `device_type`: inputs() casts, and autocast is off until the
/// scope ends. With cast_inputs elsewhere: no cast and no change. Without: no cast, forward's operations
/// follow the region. The gradient of an input that was cast is cast back by autograd.
///
/// Errors:  c10::ValueError for a cast_inputs that is no floating-point dtype; c10::Error if the device has
///          no autocast.
/// Source:  spec AC-34 to AC-37.
/// Example: custom_function_test.cpp, CustomFunction.AC35_CastInputsRunsInFloat32WithAutocastOff
class CustomForward {
 public:
  CustomForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type,
                const CustomForwardOptions& options = {});

  /// The inputs as forward is to use them, in a tuple: tensors, and trees of tensors (see map_tensors). Cast
  /// are floating-point tensors on `device_type` below float64; all others are passed through.
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

/// Put first into backward(): torch's `@custom_bwd`. Until the scope ends autocast is as forward's operations
/// had it, whether backward() is called inside a region or not, and on autograd's own threads.
///
/// Errors:  c10::Error if forward() made no CustomForward with this context.
/// Source:  spec AC-33 to AC-35.
class CustomBackward {
 public:
  explicit CustomBackward(const torch::autograd::AutogradContext* ctx);

 private:
  Autocast state_;
};

}  // namespace mantissa
