#include "mantissa/core/device.h"

#include <cstdlib>
#include <sys/resource.h>
#include <utility>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/ivalue.h>
#include <ATen/cpu/Utils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceCapability.h>

#include "mantissa/core/cuda_driver_internal.h"
#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

DtypeSupportInfo cpu_support(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
      return {DtypeSupport::kNative, "every CPU"};
    case at::kBFloat16:
      if (cpu_has("amx_bf16")) return {DtypeSupport::kNative, "AMX-BF16"};
      if (cpu_has("avx512_bf16")) return {DtypeSupport::kNative, "AVX512-BF16"};
      return {DtypeSupport::kEmulated, "no bf16 products on this CPU: computed through float32, slower"};
    case at::kHalf:
      if (cpu_has("amx_fp16")) return {DtypeSupport::kNative, "AMX-FP16"};
      if (cpu_has("avx512_fp16")) return {DtypeSupport::kNative, "AVX512-FP16"};
      return {DtypeSupport::kEmulated, "no fp16 products on this CPU: computed through float32, slower"};
    default:
      return {DtypeSupport::kUnavailable, "no CPU kernels for this dtype"};
  }
}

/// Its number; of "cuda" that of the current device. The allocator knows no device before libtorch's first
/// use of CUDA, so this is one.
c10::DeviceIndex cuda_index(at::Device device) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return device.has_index() ? device.index() : at::accelerator::getDeviceIndex();
}

/// It registers itself when it is loaded.
bool has_cuda_library() { return at::CUDAHooksRegistry()->Has("CUDAHooks"); }

DtypeSupportInfo cuda_support(at::Device device, at::ScalarType dtype) {
  if (cuda_device_count() == 0) return {DtypeSupport::kUnavailable, why_no_cuda()};
  const auto capability = at::accelerator::getDeviceCapability(cuda_index(device));
  const auto bit = uint64_t{1} << static_cast<uint64_t>(dtype);
  return capability.capability_data.capability_bits & bit
             ? DtypeSupportInfo{DtypeSupport::kNative, "CUDA device"}
             : DtypeSupportInfo{DtypeSupport::kEmulated, "not among the device's own dtypes"};
}

}  // namespace

bool cpu_has(const std::string& capability) {
  static const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(capability);
  return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

int64_t cuda_device_count() {
  const auto& hooks = at::detail::getCUDAHooks();
  return hooks.hasCUDA() ? hooks.deviceCount() : 0;
}

std::string why_no_cuda() {
  if (!has_cuda_library()) return "this build has no CUDA: build the `cuda` preset (make PRESET=cuda)";
  return why_driver_has_no_device(ask_cuda_driver(), at::detail::getCUDAHooks().versionCUDART(),
                                  std::getenv("CUDA_VISIBLE_DEVICES"));
}

void check_device(at::Device device) {
  TORCH_CHECK_VALUE(!device.is_cuda() || cuda_device_count() > 0, "device '", device.str(),
                    "' cannot be used: ", why_no_cuda());
}

at::Device resolve_device(const std::string& name) {
  if (name == "auto") {
    if (cuda_device_count() > 0) return {at::kCUDA, 0};
    if (has_cuda_library()) TORCH_WARN_ONCE("no GPU can be used: ", why_no_cuda(), "; computing on the CPU");
    return at::kCPU;
  }
  constexpr const char* kChoices = "; choose auto, cpu, cuda or cuda:N";
  // Lightning's name of it.
  const bool is_gpu = name == "gpu" || name.starts_with("gpu:");
  at::Device device(at::kCPU);
  try {
    device = at::Device(is_gpu ? "cuda" + name.substr(3) : name);
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "device '", name, "' is not a device name",
                      did_you_mean(name, {"auto", "cpu", "cuda"}), kChoices);
  }
  TORCH_CHECK_VALUE(!device.is_cpu() || device.index() <= 0, "device '", name,
                    "' was asked for, but there is one CPU; choose cpu");
  if (device.is_cpu()) return at::kCPU;
  TORCH_CHECK_VALUE(device.is_cuda(), "device '", name, "' is not supported", kChoices);
  const int64_t count = cuda_device_count();
  TORCH_CHECK_VALUE(count > 0, "device '", name, "' was asked for, but ", why_no_cuda(),
                    ", or choose the device cpu");
  if (!device.has_index()) device.set_index(0);
  TORCH_CHECK_VALUE(device.index() < count, "device '", name, "' was asked for, but this machine has ", count,
                    " CUDA device(s), numbered from 0");
  return device;
}

DtypeSupportInfo dtype_support(at::Device device, at::ScalarType dtype) {
  if (device.is_cpu()) return cpu_support(dtype);
  if (device.is_cuda()) return cuda_support(device, dtype);
  return {DtypeSupport::kUnavailable, "only cpu and cuda are supported"};
}

void reset_peak_memory(at::Device device) {
  check_device(device);
  if (device.is_cuda()) at::accelerator::resetPeakStats(cuda_index(device));
}

int64_t peak_memory_bytes(at::Device device) {
  check_device(device);
  if (device.is_cuda()) {
    const auto stats = at::accelerator::getDeviceStats(cuda_index(device));
    return stats.allocated_bytes[static_cast<size_t>(at::CachingAllocator::StatType::AGGREGATE)].peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;  // Linux gives kibibytes
}

}  // namespace mantissa
