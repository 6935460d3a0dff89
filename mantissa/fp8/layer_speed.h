#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// A linear layer and the input of its products.
struct Fp8LayerShape {
  Fp8Recipe recipe;
  at::Device device;
  at::ScalarType input, weight;  ///< dtypes
  int64_t tokens, in, out;
};

/// What a layer's three products take, with the casts that they need.
struct Fp8LayerSpeed {
  std::string layer;     ///< "DelayedScaling.bfloat16.4096-to-11008.16384-tokens"
  double fp8_seconds;    ///< forward and both gradients in FP8
  double plain_seconds;  ///< the same in the dtype of the input
  std::string source;    ///< "measured" or "cached"

  bool is_fp8_faster() const { return fp8_seconds <= plain_seconds; }
};

/// Returns the seconds that one call of `run` takes on a device, which computes after the call returns.
using SecondsOf = std::function<double(at::Device device, const std::function<void()>& run)>;

/// Calls `run` until some milliseconds have passed, and waits for the device before and after.
double seconds_on(at::Device device, const std::function<void()>& run);

/// Measures a layer of this shape with random numbers, in FP8 and in the dtype of the input.
/// Sync:   waits for the device.
/// Memory: that of the layer's factors and gradients, until it returns.
Fp8LayerSpeed measure_fp8_layer(const Fp8LayerShape& shape, const SecondsOf& seconds_of = seconds_on);

/// Returns what was measured on the device by this process, and what is in the user's cache of it.
std::vector<Fp8LayerSpeed> fp8_layer_speeds(at::Device device);

}  // namespace mantissa
