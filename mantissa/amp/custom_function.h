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
  /// Runs forward() and backward() with autocast off, and casts the inputs to this dtype. Unset: both follow
  /// the enclosing region.
  std::optional<c10::ScalarType> cast_inputs = std::nullopt;
};

/// Construct this object first in the forward() of a torch::autograd::Function that is used under autocast.
/// It corresponds to torch's `@custom_fwd`. It records the autocast state for CustomBackward and lets the
/// function choose its own dtype:
///
///   static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a_in, const at::Tensor& b_in) {
///     const CustomForward scope(ctx, at::kCPU, {.cast_inputs = at::kFloat});
///     const auto [a, b] = scope.inputs(a_in, b_in);
///     ctx->save_for_backward({a, b});
///     return a.mm(b);  // float32, also inside a bf16 region
///   }
///
/// With cast_inputs inside an enabled region of `device_type`, inputs() casts its arguments, and autocast is
/// off until this object is destroyed. Outside such a region cast_inputs has no effect. Without cast_inputs
/// nothing is cast, and the operations of forward() follow the region. Autograd casts the gradient of a cast
/// input back to the input's dtype.
///
/// Errors:  c10::ValueError for a cast_inputs that is not a floating-point dtype; c10::Error if the device
///          has no autocast.
/// Example: custom_function_test.cpp, CustomFunction.AC35_CastInputsRunsInFloat32WithAutocastOff
class CustomForward {
 public:
  CustomForward(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type,
                const CustomForwardOptions& options = {});

  /// Returns the inputs that forward() must use, as a tuple of tensors and trees of tensors (see
  /// map_tensors). Floating-point tensors on `device_type` are cast, except float64; all other tensors are
  /// returned unchanged.
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

/// Construct this object first in backward(). It corresponds to torch's `@custom_bwd`. Until it is destroyed,
/// autocast has the state in which the operations of forward() ran. It does not matter whether backward() is
/// called inside a region, or on one of autograd's own threads.
///
/// Errors:  c10::Error if forward() constructed no CustomForward with this context.
class CustomBackward {
 public:
  explicit CustomBackward(const torch::autograd::AutogradContext* ctx);

 private:
  Autocast state_;
};

}  // namespace mantissa
