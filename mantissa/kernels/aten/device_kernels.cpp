#include "mantissa/kernels/aten/device_kernels.h"

#include "mantissa/kernels/cpu/blockwise.h"
#include "mantissa/kernels/cpu/stochastic_round.h"

namespace mantissa::kernels::aten {
namespace {

constexpr DeviceKernels kDevices[] = {
    {.device = c10::DeviceType::CPU,
     .stochastic_round = &cpu::stochastic_round,
     .quantize_blockwise = &cpu::quantize_blockwise,
     .dequantize_blockwise = &cpu::dequantize_blockwise,
     .update_blockwise = &cpu::update_blockwise},
};
constexpr DeviceKernels kNone = {.device = c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES,
                                 .stochastic_round = nullptr,
                                 .quantize_blockwise = nullptr,
                                 .dequantize_blockwise = nullptr,
                                 .update_blockwise = nullptr};

}  // namespace

const DeviceKernels& device_kernels(c10::DeviceType device) {
  for (const DeviceKernels& row : kDevices)
    if (row.device == device) return row;
  return kNone;
}

}  // namespace mantissa::kernels::aten
