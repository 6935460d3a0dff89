#include "mantissa/amp/custom_function.h"

#include <string>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

namespace mantissa {
namespace {

// The key in ctx->saved_data; the value is device type, enabled, dtype.
constexpr const char* kStateKey = "mantissa::CustomForward";

std::vector<int64_t> saved_state(const torch::autograd::AutogradContext* ctx) {
  const auto found = ctx->saved_data.find(kStateKey);
  TORCH_CHECK(found != ctx->saved_data.end(),
              "CustomBackward: forward() recorded no autocast state; construct CustomForward scope(ctx, "
              "device_type) first in it");
  return found->second.toIntVector();
}

AutocastOptions options_from(const std::vector<int64_t>& state) {
  return {.dtype = static_cast<at::ScalarType>(state[2]), .enabled = state[1] != 0};
}

}  // namespace

CustomForward::CustomForward(torch::autograd::AutogradContext* ctx, at::DeviceType device_type,
                             const CustomForwardOptions& options)
    : device_type_(device_type) {
  TORCH_CHECK_VALUE(!options.cast_inputs || at::isFloatingType(*options.cast_inputs),
                    "CustomForward: cast_inputs = ", *options.cast_inputs,
                    " is not a floating-point dtype; choose Float, Half or BFloat16");
  AutocastOptions state = current_autocast(device_type);
  if (options.cast_inputs) {
    if (state.enabled) {
      cast_to_ = options.cast_inputs;
      off_.emplace(device_type, AutocastOptions{.enabled = false});
    }
    state.enabled = false;
  }
  ctx->saved_data[kStateKey] = std::vector<int64_t>{static_cast<int64_t>(device_type), state.enabled,
                                                    static_cast<int64_t>(*state.dtype)};
}

at::Tensor CustomForward::cast(const at::Tensor& input) const {
  const bool is_eligible = cast_to_ && input.is_floating_point() && input.device().type() == device_type_ &&
                           input.scalar_type() != at::kDouble;
  return is_eligible ? input.to(*cast_to_) : input;
}

CustomBackward::CustomBackward(const torch::autograd::AutogradContext* ctx)
    : state_(static_cast<at::DeviceType>(saved_state(ctx)[0]), options_from(saved_state(ctx))) {}

}  // namespace mantissa
