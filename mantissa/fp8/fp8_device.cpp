#include "mantissa/fp8/fp8_device.h"

#include <array>
#include <atomic>
#include <string>

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/overloaded.h>

#include "mantissa/core/cuda_driver_internal.h"

namespace mantissa {
namespace {

FormatSupportInfo native(std::string reason) { return {FormatSupport::kNative, std::move(reason)}; }

FormatSupportInfo emulated(std::string reason) {
  return {FormatSupport::kEmulated, std::move(reason) + ", so codes are multiplied in float32"};
}

std::string needs(int capability, std::string_view what) {
  return c10::str("sm_", capability, " has no tensor cores for ", what);
}

/// Returns the compute capability, which the driver is asked for once.
int capability_of(at::Device device) {
  static std::array<std::atomic<int>, 64> known{};  // 0: not asked yet
  const auto index =
      static_cast<unsigned char>(device.has_index() ? device.index() : at::accelerator::getDeviceIndex());
  if (index >= known.size()) return cuda_compute_capability(index);
  int capability = known[index];
  if (capability == 0) known[index] = capability = cuda_compute_capability(index);
  return capability;
}

}  // namespace

FormatSupportInfo fp8_support_of_capability(int capability, const Fp8Recipe& recipe) {
  const bool has_fp8 = capability == 89 || capability >= 90;
  const auto per_tensor = [&] {
    return has_fp8 ? native("FP8 tensor cores, through at::_scaled_mm")
                   : emulated(needs(capability, "FP8, which begin with sm_89"));
  };
  return std::visit(
      c10::overloaded(
          [&](const DelayedScaling&) { return per_tensor(); },
          [&](const Float8CurrentScaling&) { return per_tensor(); },
          [&](const Float8BlockScaling&) {
            return capability == 90
                       ? native("FP8 tensor cores with blocks of 128, of sm_90")
                       : emulated(needs(capability, "FP8 in blocks of 128, which only sm_90 has"));
          },
          [&](const MXFP8BlockScaling&) {
            return capability >= 100 && capability < 110
                       ? native("MXFP8 tensor cores")
                       : emulated(needs(capability, "MXFP8, which sm_100 and sm_103 have"));
          },
          [&](const NVFP4BlockScaling&) { return emulated("NVFP4 is emulated on every device"); }),
      recipe);
}

FormatSupportInfo fp8_support(at::Device device, const Fp8Recipe& recipe) {
  if (device.is_cpu())
    return {FormatSupport::kEmulated, "FP8 codes are multiplied exactly and summed in float32"};
  if (!device.is_cuda()) return emulated(c10::str(device.type(), " has no FP8 products that libtorch knows"));
  if (cuda_device_count() == 0) return {FormatSupport::kUnavailable, why_no_cuda()};
  return fp8_support_of_capability(capability_of(device), recipe);
}

void check_fp8_native(std::string_view who, Fp8Native native, at::Device device, const Fp8Recipe& recipe) {
  if (native != Fp8Native::kRequired) return;
  const FormatSupportInfo support = fp8_support(device, recipe);
  TORCH_CHECK_VALUE(
      support.support == FormatSupport::kNative, who, ": fp8_native is required, but ", device,
      " cannot multiply the codes of ", recipe_name(recipe), " by instructions of its own: ", support.reason,
      "; choose fp8_native auto or off to emulate them, or a GPU of compute capability 8.9 or newer (9.0 for "
      "Float8BlockScaling, 10.0 for MXFP8BlockScaling)");
}

}  // namespace mantissa
