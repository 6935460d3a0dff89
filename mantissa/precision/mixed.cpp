#include "mantissa/precision/mixed.h"

#include <utility>

#include "mantissa/amp/autocast.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {
namespace {

std::string mixed_name(at::ScalarType dtype, const std::string& name) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || dtype == at::kBFloat16,
                    "MixedPrecision: products can run in Half or BFloat16, got ", c10::toString(dtype),
                    "; the 32-true and 64-true modes use no autocast");
  if (!name.empty()) return name;
  return dtype == at::kHalf ? "16-mixed" : "bf16-mixed";
}

std::unique_ptr<GradScaler> scaler_for(at::ScalarType dtype, at::Device device,
                                       std::unique_ptr<GradScaler> scaler) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || !scaler,
                    "MixedPrecision: bf16-mixed uses no scaler, its range is float32's; leave the scaler "
                    "out, or use 16-mixed");
  return dtype == at::kHalf && !scaler ? std::make_unique<GradScaler>(device) : std::move(scaler);
}

PrecisionTraits traits_of(at::ScalarType dtype, const GradScaler* scaler) {
  const bool scales = dtype == at::kHalf && (!scaler || scaler->is_enabled());
  return {.compute = format_of(dtype).value(), .scales_loss = scales};
}

}  // namespace

MixedPrecision::MixedPrecision(at::ScalarType dtype, at::Device device, std::unique_ptr<GradScaler> scaler,
                               const std::string& name)
    // Braces, because the scaler is read before it is moved.
    : ScaledPrecision{mixed_name(dtype, name), traits_of(dtype, scaler.get()),
                      scaler_for(dtype, device, std::move(scaler))},
      dtype_(dtype),
      device_(device) {}

Scope MixedPrecision::forward_context() const {
  return std::make_shared<Autocast>(device_.type(), AutocastOptions{.dtype = dtype_});
}

at::Tensor MixedPrecision::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

}  // namespace mantissa
