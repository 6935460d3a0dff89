#include "mantissa/kernels/aten/device_kernels.h"

#include "mantissa/kernels/cpu/stochastic_round.h"

namespace mantissa::kernels::aten {
namespace {

constexpr DeviceKernels kDevices[] = {
    {.device = c10::DeviceType::CPU, .stochastic_round = &cpu::stochastic_round},
};
constexpr DeviceKernels kNone = {c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES, nullptr};

}  // namespace

const DeviceKernels& device_kernels(c10::DeviceType device) {
  for (const DeviceKernels& row : kDevices)
    if (row.device == device) return row;
  return kNone;
}

}  // namespace mantissa::kernels::aten
