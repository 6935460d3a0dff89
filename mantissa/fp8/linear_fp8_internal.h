#pragma once

// The product of a layer whose micro-batches and evaluations nobody announces.

#include <memory>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/linear_fp8.h"

namespace mantissa {

/// Returns what linear_fp8() does. The weight's codes are kept until the step ends, and used again while its bytes
/// are the same. Under no-grad nothing is recorded or kept, and the scales are the same, so that a forward pass that is
/// recomputed with a graph has the same bits. A layer of DelayedScaling without has_scales() uses those of
/// Float8CurrentScaling.
at::Tensor linear_fp8_in_training(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                  const std::shared_ptr<Fp8LinearState>& state);

}  // namespace mantissa
