#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// How a model whose context was extended lowers its rotary frequencies. The members have the names of config.json.
struct RopeScaling {
  enum class Kind : uint8_t {
    kLinear,  ///< divides every frequency by `factor`; the other members are not used
    kLlama3,  ///< divides the low frequencies by `factor`, leaves the high ones, and blends between them
  };
  Kind kind = Kind::kLlama3;
  double factor = 8;
  /// A frequency counts as low if it makes fewer than low_freq_factor turns over the original context, and as high
  /// if it makes more than high_freq_factor.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling&) const = default;
};

/// The cosines and sines of rotary position embeddings.
struct RotaryAngles {
  at::Tensor cos, sin;  ///< [T, head_dim]; the second half repeats the first
};

/// Returns the angle per position of each pair of channels: theta^(-2i / head_dim), lowered by `scaling` if it is
/// given.
///
/// Shapes:   [head_dim / 2], float32 on the CPU.
/// Numerics: float32, in the order of the operations of Hugging Face's transformers.
/// Source:   Su et al. 2021, arXiv:2104.09864, section 3.2.2.
at::Tensor rotary_frequencies(int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling);

/// Returns the cosines and sines of the angles of the positions from `first` to first + length - 1. They are computed
/// in float32 and rounded to the dtype of `like`. `frequencies` and `like` are on one device.
RotaryAngles rotary_angles(const at::Tensor& frequencies, int64_t length, const at::Tensor& like,
                           int64_t first = 0);

/// Turns each pair of channels (i, i + head_dim / 2) of x by its position's angle.
///
/// Shapes: x [B, heads, T, head_dim] -> the same.
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles);

}  // namespace mantissa
