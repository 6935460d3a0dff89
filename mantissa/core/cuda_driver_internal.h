#pragma once

#include <cstdint>
#include <string>

namespace mantissa {

/// What the NVIDIA driver reports about itself. It is asked without libtorch, which only counts the devices
/// that it can use.
struct CudaDriver {
  bool is_loaded = false;
  /// The newest CUDA version that the driver supports: 13000 for 13.0, 0 if it does not report one.
  int64_t version = 0;
  /// cuInit()'s result: 0 on success, 100 if no device is visible to this process.
  int64_t status = 0;
  /// The driver's own name for `status`, such as "CUDA_ERROR_NO_DEVICE". Empty on success.
  std::string error;
};

/// Loads the driver's library and leaves it loaded.
CudaDriver ask_cuda_driver(const char* library = "libcuda.so.1");

/// Returns why a libtorch that was compiled for CUDA `needed` (13000 for 13.0) cannot use a GPU through
/// `driver`, and how to fix it. `visible_devices` is the value of CUDA_VISIBLE_DEVICES, or null.
std::string why_driver_has_no_device(const CudaDriver& driver, int64_t needed, const char* visible_devices);

/// Returns the compute capability of a device, 90 for sm_90, or 0 if the driver does not report it.
int cuda_compute_capability(int device, const char* library = "libcuda.so.1");

/// Returns the driver's name of a device, such as "NVIDIA H100 80GB HBM3"; "" if it does not report one.
std::string cuda_device_name(int device, const char* library = "libcuda.so.1");

}  // namespace mantissa
