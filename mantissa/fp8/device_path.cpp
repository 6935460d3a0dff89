#include <optional>

#include "mantissa/fp8/device_path_internal.h"

namespace mantissa::fp8 {
namespace {

thread_local std::optional<DevicePath> forced_path;

}  // namespace

DevicePath path_of(const at::Tensor& tensor) {
  if (forced_path) return *forced_path;
  return tensor.is_cpu() ? DevicePath::kCpuKernels : DevicePath::kOperators;
}

ForcedPath::ForcedPath(DevicePath path) { forced_path = path; }
ForcedPath::~ForcedPath() { forced_path.reset(); }

}  // namespace mantissa::fp8
