#include "mantissa/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include "mantissa/amp/kept_weights_internal.h"
#include "mantissa/core/device.h"
#include "mantissa/kernels/aten/overrides.h"

namespace mantissa {
namespace {

bool is_16_bit_float(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

bool has_cuda() {
  // Every CUDA region asks; the driver needs microseconds to answer, and the answer does not change.
  static const bool has_cuda = cuda_device_count() > 0;
  return has_cuda;
}

/// Whether the region may be enabled. The dtype is checked before the device, so that a program which is
/// wrong on a GPU also fails on a machine without one.
bool validate_cuda(at::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      is_16_bit_float(dtype), "Autocast(cuda, ", dtype,
      "): CUDA autocast computes in Half or BFloat16; choose one of these, or pass enabled = false");
  if (!has_cuda()) {
    TORCH_WARN_ONCE("Autocast(cuda): CUDA is not available, so this region is disabled (", why_no_cuda(),
                    "). Use Autocast(cpu) on this machine, or pass enabled = false.");
    return false;
  }
  static const bool no_bf16 =
      format_support(at::kCUDA, Format::kBFloat16).support == FormatSupport::kUnavailable;
  TORCH_CHECK_VALUE(dtype != at::kBFloat16 || !no_bf16,
                    "Autocast(cuda, BFloat16): the current CUDA device does not support bfloat16; "
                    "switch the dtype to Half and use a GradScaler");
  return true;
}

bool validate(at::DeviceType device_type, at::ScalarType dtype) {
  if (device_type == at::kCUDA) return validate_cuda(dtype);
  if (is_16_bit_float(dtype)) return true;
  TORCH_WARN_ONCE("Autocast(", c10::DeviceTypeName(device_type, /*lower_case=*/true), ", ", dtype,
                  "): the dtype is not supported, so this region is disabled. Autocast on this device "
                  "supports BFloat16 and Half; choose one of these, or pass enabled = false.");
  return false;
}

void check_has_autocast(at::DeviceType device_type) {
  TORCH_CHECK(at::autocast::is_autocast_available(device_type), "Autocast(",
              c10::DeviceTypeName(device_type, /*lower_case=*/true),
              "): unsupported autocast device type; use cpu or cuda");
}

}  // namespace

AutocastOptions current_autocast(at::DeviceType device_type) {
  check_has_autocast(device_type);
  return {.dtype = at::autocast::get_autocast_dtype(device_type),
          .enabled = at::autocast::is_autocast_enabled(device_type),
          .cache_enabled = at::autocast::is_autocast_cache_enabled()};
}

Autocast::Autocast(at::DeviceType device_type, const AutocastOptions& options) : device_type_(device_type) {
  check_has_autocast(device_type);
  previous_dtype_ = at::autocast::get_autocast_dtype(device_type);
  dtype_ = options.dtype.value_or(previous_dtype_);
  enabled_ = options.enabled && validate(device_type, dtype_);
  previous_enabled_ = at::autocast::is_autocast_enabled(device_type);
  previous_cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  if (enabled_ && device_type == at::kCPU) enable_cpu_kernels_by_default();
  watches_kept_weights_ = enabled_ && kept_weights::begin_watch();

  // Nothing below throws: the state is entered either completely or not at all.
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_type, enabled_);
  at::autocast::set_autocast_dtype(device_type, dtype_);
  at::autocast::set_autocast_cache_enabled(options.cache_enabled.value_or(previous_cache_enabled_));
  if (dtype_ != previous_dtype_) at::autocast::clear_cache();
}

Autocast::~Autocast() {
  const bool outermost = at::autocast::decrement_nesting() == 0;
  if (outermost || dtype_ != previous_dtype_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_type_, previous_dtype_);
  at::autocast::set_autocast_cache_enabled(previous_cache_enabled_);
  if (watches_kept_weights_) kept_weights::end_watch();
}

AutocastOff::AutocastOff() {
  for (const at::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    if (!at::autocast::is_autocast_enabled(device)) continue;
    devices_.push_back(device);
    at::autocast::set_autocast_enabled(device, false);
  }
}

AutocastOff::~AutocastOff() {
  for (const at::DeviceType device : devices_) at::autocast::set_autocast_enabled(device, true);
}

}  // namespace mantissa
