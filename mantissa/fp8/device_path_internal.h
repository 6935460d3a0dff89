#pragma once

// Which code computes: the kernels of the CPU, libtorch's operators, or a device's own FP8 products.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa::fp8 {

enum class DevicePath : uint8_t {
  kCpuKernels,  ///< tensors on the CPU
  kOperators,   ///< libtorch's operators on any device, with the same codes and scales
  kNative       ///< the same casts, and at::_scaled_mm for products where it has the recipe
};

/// Returns the path that a test has forced on this thread, or else kCpuKernels on the CPU and kOperators elsewhere.
DevicePath path_of(const at::Tensor& tensor);

inline bool uses_cpu_kernels(const at::Tensor& tensor) { return path_of(tensor) == DevicePath::kCpuKernels; }

/// For tests, which have no other device than the CPU: while it lives, tensors of this thread take `path`.
class ForcedPath {
 public:
  explicit ForcedPath(DevicePath path);
  ~ForcedPath();
  ForcedPath(const ForcedPath&) = delete;
  ForcedPath& operator=(const ForcedPath&) = delete;
};

}  // namespace mantissa::fp8
