#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace mantissa {

/// What a sample of layers counts.
enum class LayerSampling : uint8_t {
  kNone,             ///< nothing; layers cost what they do without sampling
  kTensors,          ///< TensorStatistics
  kTensorsAndErrors  ///< and ProductError, which computes each product a second time in float32
};

/// What quantization did to the values of a tensor, or of several tensors together.
struct TensorStatistics {
  int64_t numel = 0;
  /// Non-zero values whose codes are 0. With stochastic rounding, by the codes that were drawn.
  int64_t underflows = 0;
  /// Values that the format's range cut off: inf, and values that rounding to nearest would take beyond the format's largest
  /// number. Those up to half a step above it are rounded to it and do not count.
  int64_t overflows = 0;
  double amax = 0;  ///< the largest magnitude before scaling; inf if there is one; NaN does not count
  /// The smallest and the largest factor by which values were multiplied before their cast. Blocks without a number
  /// other than 0 do not count. Unset if nothing counts, unless a tensor has one scale.
  std::optional<double> scale_min = std::nullopt, scale_max = std::nullopt;

  /// Shares of all values, from 0 to 1; 0 without values.
  double underflow_share() const { return share_of(underflows); }
  double overflow_share() const { return share_of(overflows); }

  void add(const TensorStatistics& other) {
    numel += other.numel, underflows += other.underflows, overflows += other.overflows;
    amax = std::max(amax, other.amax);
    if (other.scale_min) scale_min = std::min(scale_min.value_or(*other.scale_min), *other.scale_min);
    if (other.scale_max) scale_max = std::max(scale_max.value_or(*other.scale_max), *other.scale_max);
  }

  bool operator==(const TensorStatistics&) const = default;

 private:
  double share_of(int64_t count) const {
    return numel == 0 ? 0 : static_cast<double>(count) / static_cast<double>(numel);
  }
};

/// How far the values of a product are from those of the same product in float32.
struct ProductError {
  double difference = 0;  ///< the sum of |value - reference|
  double magnitude = 0;   ///< the sum of |reference|

  /// Returns the mean difference divided by the mean magnitude; 0 if both are 0. NaN and inf in a product make it NaN.
  double relative() const { return difference == 0 ? 0 : difference / magnitude; }

  void add(const ProductError& other) { difference += other.difference, magnitude += other.magnitude; }
};

/// What quantization did in one layer: in all its products since sampling began.
struct LayerStatistics {
  /// By "input", "weight" and "grad_output", as they were quantized for the result and for the gradient of the input. A weight
  /// counts once for each product.
  std::map<std::string, TensorStatistics> tensors = {};
  /// By "output", "grad_input" and "grad_weight". Only products with values are there.
  std::map<std::string, ProductError> products = {};

  void add(const LayerStatistics& other) {
    for (const auto& [name, tensor] : other.tensors) tensors[name].add(tensor);
    for (const auto& [name, product] : other.products) products[name].add(product);
  }
};

}  // namespace mantissa
