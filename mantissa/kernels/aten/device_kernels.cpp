#include "mantissa/kernels/aten/device_kernels.h"

#include "mantissa/kernels/aten/low_bit_internal.h"
#include "mantissa/kernels/cpu/blockwise.h"
#include "mantissa/kernels/cpu/int8.h"
#include "mantissa/kernels/cpu/quantized4.h"
#include "mantissa/kernels/cpu/stochastic_round.h"

namespace mantissa::kernels::aten {
namespace {

constexpr DeviceKernels kDevices[] = {
    {.device = c10::DeviceType::CPU,
     .stochastic_round = &cpu::stochastic_round,
     .quantize_blockwise = &cpu::quantize_blockwise,
     .dequantize_blockwise = &cpu::dequantize_blockwise,
     .update_blockwise = &cpu::update_blockwise,
     .quantize4 = [](const Quantize4& p) { cpu::quantize4(p, cpu::quantized4_build()); },
     .dequantize4 = [](const Dequantize4& p) { cpu::dequantize4(p, cpu::quantized4_build()); },
     .dequantize_rows4 = [](const DequantizeRows4& p) { cpu::dequantize_rows4(p, cpu::quantized4_build()); },
     .product4 = &low_bit::product4,
     .quantize_int8 = [](const QuantizeInt8& p,
                         uint8_t* outliers) { cpu::quantize_int8(p, outliers, cpu::int8_build()); },
     .dequantize_int8 = [](const DequantizeInt8& p) { cpu::dequantize_int8(p, cpu::int8_build()); },
     .product_int8 = &low_bit::product_int8},
};
constexpr DeviceKernels kNone;

}  // namespace

const DeviceKernels& device_kernels(c10::DeviceType device) {
  for (const DeviceKernels& row : kDevices)
    if (row.device == device) return row;
  return kNone;
}

}  // namespace mantissa::kernels::aten
