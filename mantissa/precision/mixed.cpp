#include "mantissa/precision/mixed.h"

#include <utility>

#include "mantissa/amp/autocast.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {
namespace {

std::string mixed_name(at::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || dtype == at::kBFloat16,
                    "MixedPrecision: products can run in Half or BFloat16, got ", c10::toString(dtype),
                    "; the 32-true and 64-true modes use no autocast");
  return dtype == at::kHalf ? "16-mixed" : "bf16-mixed";
}

}  // namespace

MixedPrecision::MixedPrecision(at::ScalarType dtype, at::Device device, std::unique_ptr<GradScaler> scaler,
                               const std::string& name)
    : ScaledPrecision(name.empty() ? mixed_name(dtype) : name, dtype == at::kHalf && !scaler
                                                                   ? std::make_unique<GradScaler>(device)
                                                                   : std::move(scaler)),
      dtype_(dtype),
      device_(device) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || !this->scaler(),
                    "MixedPrecision: bf16-mixed uses no scaler, its range is float32's; leave the scaler "
                    "out, or use 16-mixed");
}

Scope MixedPrecision::forward_context() const {
  return std::make_shared<Autocast>(device_.type(), AutocastOptions{.dtype = dtype_});
}

at::Tensor MixedPrecision::convert_output(const at::Tensor& y) const { return to_default_dtype(y); }

}  // namespace mantissa
