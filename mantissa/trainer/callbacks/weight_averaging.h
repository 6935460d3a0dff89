#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "mantissa/core/state_dict.h"
#include "mantissa/optim/ema.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

struct EMAWeightAveragingOptions {
  EmaOptions ema = {};
  int64_t update_every_n_steps = 1;
  /// The optimizer step, counted from 1, whose weights are the first to be averaged.
  int64_t update_starting_at_step = 1;
};

/// Keeps the exponential moving average of the model's weights. Validation uses the averaged weights,
/// training continues with the trained ones, and after fit() the model has the averaged weights. A skipped
/// step is not averaged. The weights of a checkpoint are the averaged ones, which were validated; the trained
/// weights are in the callback's state. Names are Lightning's.
///
/// Memory: that of ExponentialMovingAverage.
/// Errors: c10::ValueError for options out of range, and if the Trainer has a second one.
/// Example: weight_averaging_test.cpp, EMAWeightAveraging.ValidationSeesTheAverage
class EMAWeightAveraging final : public Callback, public Stateful {
 public:
  explicit EMAWeightAveraging(EMAWeightAveragingOptions options = {});

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;
  void on_validation_start(Trainer& trainer) override;
  void on_validation_end(Trainer& trainer) override;
  void on_fit_end(Trainer& trainer, const FitResult& result) override;
  void on_exception(Trainer& trainer, const std::exception_ptr& exception) override;
  void on_save_checkpoint(Trainer& trainer, Checkpoint& checkpoint) override;
  void on_load_checkpoint(Trainer& trainer, const Checkpoint& checkpoint) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateReader& state) override;

  /// The average of the last fit, whose task must still exist; null before the first fit.
  const ExponentialMovingAverage* average() const { return ema_ ? &*ema_ : nullptr; }

 private:
  EMAWeightAveragingOptions options_;
  std::optional<ExponentialMovingAverage> ema_;
  std::shared_ptr<void> averaged_;  ///< set while the model has the averaged weights
  bool fitting_ = false;
};

}  // namespace mantissa
