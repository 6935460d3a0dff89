#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/loggers/logger.h"

namespace mantissa {

struct OptimizerConfig;

/// Names and meanings are Lightning's.
struct LearningRateMonitorOptions {
  /// "step": in every row of a step (log_every_n_steps). "epoch": in the row of each epoch's first step.
  /// Unset: as often as each optimizer's schedule advances; of one without a schedule both.
  std::optional<std::string> logging_interval = std::nullopt;
  /// Also momentum, or the first beta; 0 for an optimizer that has neither.
  bool log_momentum = false;
  /// Also weight decay; 0 for an optimizer that has none.
  bool log_weight_decay = false;
};

/// Logs the learning rate of every parameter group: what the step used, before the schedule moves on.
///
/// Names are Lightning's: "lr-AdamW", of a second optimizer of that class "lr-AdamW-1" (those with a schedule
/// are counted first), with several groups "lr-AdamW/pg1", "lr-AdamW/pg2", and behind them "-momentum" and
/// "-weight_decay". Classes are named without their namespace.
/// Sync:    none.
/// Errors:  c10::ValueError for another interval, in the constructor; at the start for a Trainer without
///          loggers. c10::Error for an optimizer whose options have no get_lr(); with log_momentum and
///          log_weight_decay what optimizer_state() throws.
/// Source:  docs/callbacks/learning-rate-monitor.md
/// Example: learning_rate_monitor_test.cpp, LearningRateMonitor.LogsWhatTheStepUsed
class LearningRateMonitor final : public Callback, public Stateful {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_start(Trainer& trainer, const Batch& batch, int64_t batch_index) override;
  void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& optimizer) override;

  /// The epoch that has been logged.
  StateDict state_dict() const override { return {{"logged_epoch", logged_epoch_}}; }
  void load_state_dict(const StateReader& state) override;

 private:
  bool is_logged(const OptimizerConfig& config, bool by_epoch) const;
  MetricValues values(const OptimizerConfig& config, const std::string& name) const;

  LearningRateMonitorOptions options_;
  std::vector<std::string> names_;  ///< of the Trainer's optimizers
  int64_t logged_epoch_ = -1;
};

}  // namespace mantissa
