#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/weights/marked_weight.h"

namespace mantissa {

/// The rule of a weight that is trained in FP8: with mark_weight() (weights/marked_weight.h), products of the weight are
/// those of linear_fp8() inside an enabled Fp8Autocast, and ordinary ones elsewhere. The weight itself stays in 16 or
/// 32 bits.
///
/// Codes:      those of the weight are kept until the step ends, and used again while its bytes are the same, for
///             example in the micro-batches of an accumulation window. Whether they are the same is decided by a hash of all
///             bytes, so old codes are never used.
/// Steps:      whoever marks the weight calls update_scales() (linear_fp8.h) on state() after each step. The modes do.
/// Scales:     a layer of DelayedScaling that has ended no step yet computes with those of Float8CurrentScaling, in
///             training and in evaluation.
/// Evaluation: a product under no-grad records nothing, so it does not matter how often a run evaluates. It has the bits of
///             a product in training.
/// Threads:    any number may multiply at the same time.
/// Errors:     those of linear_fp8().
/// Example:    fp8_training_test.cpp, Fp8Training.APlainLinearTrains
class Fp8TrainingRule final : public WeightRule {
 public:
  /// `belongs_to_mode`: see WeightRule.
  /// Errors: c10::ValueError for no state.
  explicit Fp8TrainingRule(std::shared_ptr<Fp8LinearState> state, bool belongs_to_mode = false);

  const std::shared_ptr<Fp8LinearState>& state() const { return state_; }

  std::string description() const override { return "FP8 training"; }
  /// Whether the region of this thread is enabled, and FP8 makes the layer faster (Fp8LinearState::is_faster_in_fp8()). In a calibrating one, records the magnitudes.
  bool computes(const at::Tensor& factor, const at::Tensor& weight) const override;
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override;
  /// Returns a rule with a state of its own. If the rule belongs to a mode, the state is new, with other random numbers:
  /// no mode ends the steps of a copy, so it computes with the scales of Float8CurrentScaling. If not, the state begins with
  /// the values of this one's.
  WeightRulePtr for_copy() const override;
  bool belongs_to_mode() const override { return belongs_to_mode_; }
  /// True: fp8_weight.h stores weights as codes.
  bool takes_packed() const override { return true; }

 private:
  std::shared_ptr<Fp8LinearState> state_;
  bool belongs_to_mode_;
  mutable std::atomic<uint64_t> copies_ = 0;
};

/// Returns the state of a weight that is trained in FP8; null for any other tensor.
std::shared_ptr<Fp8LinearState> fp8_state_of(const at::Tensor& weight);

}  // namespace mantissa
