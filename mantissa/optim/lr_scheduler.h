#pragma once

#include <cstdint>
#include <vector>

#include <torch/optim/schedulers/lr_scheduler.h>

#include "mantissa/core/state_dict.h"

namespace mantissa {

struct WarmupCosineOptions {
  /// Steps over which the rate rises linearly to the base rate; 0: none.
  int64_t warmup_steps = 0;
  /// The step at which the cosine reaches final_factor; more than warmup_steps.
  int64_t total_steps = 0;
  /// The last rate as a fraction of the base rate, in [0, 1].
  double final_factor = 0;
};

/// Returns the factor on the base learning rate for optimizer step number `step`, counted from 0:
///   step < warmup_steps     (step + 1) / warmup_steps
///   step < total_steps      final + (1 - final) * (1 + cos(pi * (step - warmup) / (total - warmup))) / 2
///   otherwise               final
double warmup_cosine_factor(const WarmupCosineOptions& options, int64_t step);

/// Linear warm-up, then a half cosine from each parameter group's own learning rate down to `final_factor` of
/// it. Loops call step() once after every optimizer step that was taken.
///
/// The constructor uses the groups' current rates as base rates and sets the rate of step 0 at once, as
/// Python's schedulers do. libtorch's own schedulers use the base rate for the first step and the rate of
/// step 0 for the second.
///
/// Errors:  c10::ValueError for options out of range, before any rate changes; c10::Error from step() if a
///          parameter group has been added to the optimizer since.
/// Example: lr_scheduler_test.cpp, WarmupCosineLR.SetsEveryGroupsRateBeforeItsStep.
class WarmupCosineLR final : public torch::optim::LRScheduler, public Stateful {
 public:
  /// `optimizer` is borrowed and must outlive this.
  WarmupCosineLR(torch::optim::Optimizer& optimizer, const WarmupCosineOptions& options);

  /// The number of calls of step().
  int64_t steps_taken() const { return step_count_; }
  /// Continues after `steps_taken` steps and sets the rates for that step. The base rates stay those of the
  /// constructor, so make the schedule before loading an optimizer's saved state.
  void resume_at(int64_t steps_taken);

  /// Returns the steps taken and the base rates, for a checkpoint. The current rates belong to the
  /// optimizer's state.
  StateDict state_dict() const override;
  /// Sets no rates: loading the optimizer's state restores those.
  /// Errors: c10::ValueError naming the place if the state has another number of parameter groups.
  void load_state_dict(const StateReader& state) override;

 protected:
  std::vector<double> get_lrs() override;

 private:
  std::vector<double> rates_at(int64_t step) const;
  void set_rates(int64_t step);

  torch::optim::Optimizer& optimizer_;
  WarmupCosineOptions options_;
  std::vector<double> base_lrs_;
};

}  // namespace mantissa
