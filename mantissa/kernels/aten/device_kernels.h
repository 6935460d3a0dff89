#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/DeviceType.h>

#include "mantissa/kernels/blockwise.h"
#include "mantissa/kernels/int8.h"
#include "mantissa/kernels/quantized4.h"
#include "mantissa/kernels/stochastic_round.h"

namespace mantissa::kernels::aten {

/// The kernels of Mantissa's own operators on one device. (For libtorch's operators, libtorch's dispatcher is
/// this table: see registration.cpp.) A kernel takes a problem in the device's memory, and works on
/// libtorch's threads or on its current stream.
struct DeviceKernels {
  c10::DeviceType device = c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES;

  // Null: computed by tensor operations.

  void (*stochastic_round)(const StochasticRound&) = nullptr;
  void (*quantize_blockwise)(const QuantizeBlockwise&) = nullptr;
  void (*dequantize_blockwise)(const DequantizeBlockwise&) = nullptr;
  void (*update_blockwise)(const std::vector<BlockwiseUpdate>&) = nullptr;
  void (*quantize4)(const Quantize4&) = nullptr;
  void (*dequantize4)(const Dequantize4&) = nullptr;
  void (*dequantize_rows4)(const DequantizeRows4&) = nullptr;
  void (*product4)(const Product4&) = nullptr;
  /// Also sets outliers[j] to 1 for each column j that has an outlier, unless `outliers` is null.
  void (*quantize_int8)(const QuantizeInt8&, uint8_t* outliers) = nullptr;
  void (*dequantize_int8)(const DequantizeInt8&) = nullptr;
  void (*product_int8)(const ProductInt8&) = nullptr;
};

/// Returns the row of `device`, or a row without kernels if the device has none.
const DeviceKernels& device_kernels(c10::DeviceType device);

}  // namespace mantissa::kernels::aten
