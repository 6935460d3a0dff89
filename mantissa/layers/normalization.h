#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Transformer Engine's names.
enum class Normalization : uint8_t { kLayerNorm, kRMSNorm };

struct NormalizationOptions {
  Normalization kind = Normalization::kLayerNorm;
  double eps = 1e-5;
  /// The factor is 1 + weight, so that weight decay pulls it to 1. The weight then starts at 0.
  bool zero_centered_gamma = false;
};

/// Returns x, normalized along its last dimension, times weight (or 1 + weight), plus bias.
///
/// Shapes:   x [..., features], weight [features], bias [features]; RMSNorm has no bias, so it is undefined there.
/// Numerics: statistics are float32 for 16-bit inputs; the variance is that of the population.
at::Tensor normalize(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const NormalizationOptions& options);

}  // namespace mantissa
