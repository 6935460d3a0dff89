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
#include <c10/util/StringUtil.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/core/cuda_driver_internal.h"
#include "mantissa/core/suggest.h"

namespace mantissa {
namespace {

FormatSupportInfo cpu_support(Format format) {
  const CpuFeatures features = hardware_cpu_features();
  switch (format) {
    case Format::kFloat32:
    case Format::kFloat64:
      return {FormatSupport::kNative, "every CPU"};
    case Format::kTF32:
      return {FormatSupport::kEmulated,
              "most CPUs have no TF32 and compute products in float32, which is more exact"};
    case Format::kBFloat16:
      if (features.has(CpuFeature::kAmxBf16)) return {FormatSupport::kNative, "AMX-BF16"};
      if (features.has(CpuFeature::kAvx512Bf16)) return {FormatSupport::kNative, "AVX512-BF16"};
      return {FormatSupport::kEmulated, "no bf16 products on this CPU: computed through float32, slower"};
    case Format::kFloat16:
      if (features.has(CpuFeature::kAmxFp16)) return {FormatSupport::kNative, "AMX-FP16"};
      if (features.has(CpuFeature::kAvx512Fp16)) return {FormatSupport::kNative, "AVX512-FP16"};
      return {FormatSupport::kEmulated, "no fp16 products on this CPU: computed through float32, slower"};
    default:
      return {FormatSupport::kUnavailable, c10::str("no CPU kernels for ", info(format).name)};
  }
}

/// Returns the device's index, or the current device's for "cuda". The allocator knows no device before
/// libtorch first uses CUDA, so this initialises CUDA.
c10::DeviceIndex cuda_index(at::Device device) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return device.has_index() ? device.index() : at::accelerator::getDeviceIndex();
}

/// libtorch's CUDA library registers its hooks when it is loaded.
bool has_cuda_library() { return at::CUDAHooksRegistry()->Has("CUDAHooks"); }

FormatSupportInfo cuda_support(at::Device device, Format format) {
  if (cuda_device_count() == 0) return {FormatSupport::kUnavailable, why_no_cuda()};
  const c10::DeviceIndex index = cuda_index(device);
  if (format == Format::kTF32) {
    return cuda_compute_capability(index) >= 80
               ? FormatSupportInfo{FormatSupport::kNative, "TF32 tensor cores"}
               : FormatSupportInfo{
                     FormatSupport::kEmulated,
                     "no TF32 before sm_80: products are computed in float32, which is more exact"};
  }
  if (!info(format).dtype)
    return {FormatSupport::kUnavailable, c10::str("no CUDA kernels for ", info(format).name)};
  const auto capability = at::accelerator::getDeviceCapability(index);
  const auto bit = uint64_t{1} << static_cast<uint64_t>(*info(format).dtype);
  return capability.capability_data.capability_bits & bit
             ? FormatSupportInfo{FormatSupport::kNative, "CUDA device"}
             : FormatSupportInfo{FormatSupport::kEmulated, "not among the device's own dtypes"};
}

}  // namespace

bool cpu_has(const std::string& capability) {
  for (int i = 0; i < kCpuFeatures; ++i)
    if (const auto feature = static_cast<CpuFeature>(i); cpu_feature_name(feature) == capability)
      return hardware_cpu_features().has(feature);
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
    if (has_cuda_library()) {
      TORCH_WARN_ONCE("no GPU can be used: ", why_no_cuda(), "; computing on the CPU");
    }
    return at::kCPU;
  }
  constexpr const char* kChoices = "; choose auto, cpu, cuda or cuda:N";
  // Lightning's name for CUDA devices.
  const bool is_gpu = name == "gpu" || name.starts_with("gpu:");
  at::Device device(at::kCPU);
  try {
    device = at::Device(is_gpu ? "cuda" + name.substr(3) : name);
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "device '", name, "' is not a device name",
                      did_you_mean(name, {"auto", "cpu", "cuda"}), kChoices);
  }
  TORCH_CHECK_VALUE(!device.is_cpu() || device.index() <= 0, "device '", name,
                    "' was asked for, but there is only one CPU; choose cpu");
  if (device.is_cpu()) return at::kCPU;
  TORCH_CHECK_VALUE(device.is_cuda(), "device '", name, "' is not supported", kChoices);
  const int64_t count = cuda_device_count();
  TORCH_CHECK_VALUE(count > 0, "device '", name, "' was asked for, but ", why_no_cuda(),
                    ", or choose the device cpu");
  if (!device.has_index()) device.set_index(0);
  TORCH_CHECK_VALUE(device.index() < count, "device '", name, "' was asked for, but this machine has ", count,
                    " CUDA device(s), numbered from 0; choose one of them");
  return device;
}

FormatSupportInfo format_support(at::Device device, Format format) {
  if (device.is_cpu()) return cpu_support(format);
  if (device.is_cuda()) return cuda_support(device, format);
  return {FormatSupport::kUnavailable, "only cpu and cuda are supported"};
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
  return int64_t{usage.ru_maxrss} * 1024;  // Linux reports kibibytes
}

}  // namespace mantissa
