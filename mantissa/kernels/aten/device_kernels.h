#pragma once

#include <vector>

#include <c10/core/DeviceType.h>

#include "mantissa/kernels/blockwise.h"
#include "mantissa/kernels/stochastic_round.h"

namespace mantissa::kernels::aten {

/// The kernels of Mantissa's own operators on one device. (For libtorch's operators, libtorch's dispatcher is
/// this table: see registration.cpp.) A kernel takes a problem in the device's memory, and works on
/// libtorch's threads or on its current stream.
struct DeviceKernels {
  c10::DeviceType device;
  /// Null: computed by tensor operations.
  void (*stochastic_round)(const StochasticRound&);
  void (*quantize_blockwise)(const QuantizeBlockwise&);
  void (*dequantize_blockwise)(const DequantizeBlockwise&);
  void (*update_blockwise)(const std::vector<BlockwiseUpdate>&);
};

/// Returns the row of `device`, or a row without kernels if the device has none.
const DeviceKernels& device_kernels(c10::DeviceType device);

}  // namespace mantissa::kernels::aten
