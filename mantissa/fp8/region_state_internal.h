#pragma once

#include <memory>

#include "mantissa/fp8/linear_fp8.h"

namespace mantissa {

/// Returns the state with which a layer computes in this thread's region: its own one, or one for this product alone if the
/// region has another recipe. NVFP4's random numbers come from the layer's, and the sample is the layer's.
/// Errors: c10::ValueError for a region whose recipe is another DelayedScaling than the layer's.
std::shared_ptr<Fp8LinearState> state_in_region(const std::shared_ptr<Fp8LinearState>& layer);

}  // namespace mantissa
