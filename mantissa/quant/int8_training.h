#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/kernels/aten/tensor_content.h"
#include "mantissa/quant/quantized_int8.h"
#include "mantissa/weights/marked_weight.h"

namespace mantissa {

/// The rule of a weight that is trained in 8 bits: with mark_weight() (weights/marked_weight.h), products of
/// the weight are those of linear_int8_training(), while the weight itself stays in 16 or 32 bits.
///
/// Numerics: those of linear_int8_training(), with this threshold.
/// Memory:   the codes of the last product, 1 byte per value and 4 per row, until the weight changes.
/// Speed:    on the CPU the codes are kept, and used again while the weight's bytes are the same, for example
///           in the micro-batches of an accumulation window. Whether they are the same is decided by a hash of
///           all bytes, because some changes, such as a step of torch::optim::SGD, bump no version. On other
///           devices, and for a view with gaps, the weight is quantized for each product.
/// Sync:     none on the CPU; with a threshold, waits for another device.
/// Threads:  any number may multiply at the same time.
/// Errors:   those of linear_int8_training(). Errors of the weight's values, such as inf, call it by its name; on
///           other devices than the CPU, inf and NaN reach the result instead.
/// Source:   bitsandbytes's Linear8bitLt(has_fp16_weights=True).
/// Example:  int8_training_test.cpp, Int8Training.APlainLinearTrains
class Int8TrainingRule final : public WeightRule {
 public:
  /// `name`: the weight's name in errors.
  /// Errors: c10::ValueError for a negative threshold or one that is nan.
  explicit Int8TrainingRule(double threshold = 6, std::string name = "the weight");

  std::string description() const override { return "int8 training"; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override;
  WeightRulePtr for_copy() const override;
  /// True, because "int8-training" (precision/int8_training.h) is this rule on all layers.
  bool belongs_to_mode() const override { return true; }

  double threshold() const { return threshold_; }
  /// Returns how many times the weight was quantized.
  int64_t quantizations() const;

 private:
  /// What a tensor was when it was quantized.
  static std::optional<kernels::TensorContent> source_of(const at::Tensor& weight);
  QuantizedInt8 codes_of(const at::Tensor& weight) const;

  double threshold_;
  std::string name_;
  mutable std::mutex mutex_;  ///< of the members below
  mutable std::optional<kernels::TensorContent> source_;
  mutable QuantizedInt8 codes_;
  mutable int64_t quantizations_ = 0;
};

}  // namespace mantissa
