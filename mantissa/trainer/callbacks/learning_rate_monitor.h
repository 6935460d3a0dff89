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
  /// "step": logs in each row that a step makes (log_every_n_steps). "epoch": logs in the row of each epoch's
  /// first step. Unset: logs as often as each optimizer's schedule advances; an optimizer without a schedule is
  /// logged both per step and per epoch.
  std::optional<std::string> logging_interval = std::nullopt;
  /// Also logs momentum, or the first beta; 0 for an optimizer that has neither.
  bool log_momentum = false;
  /// Also logs weight decay; 0 for an optimizer that has none.
  bool log_weight_decay = false;
};

/// Logs the learning rate of every parameter group as the step uses it, before the schedule advances.
///
/// Names are Lightning's: "lr-AdamW" for one optimizer, and "lr-AdamW-1" for a second one of that class
/// (those with a schedule are counted first). Several groups are "lr-AdamW/pg1" and "lr-AdamW/pg2". The
/// suffixes are "-momentum" and "-weight_decay". Class names omit the namespace.
///
/// Sync:    none.
/// Errors:  c10::ValueError for an unknown interval, in the constructor; at the start of a fit for a Trainer
///          without loggers. c10::Error for an optimizer whose options have no get_lr(); with log_momentum
///          and log_weight_decay also the errors of optimizer_state().
/// Source:  docs/callbacks/learning-rate-monitor.md
/// Example: learning_rate_monitor_test.cpp, LearningRateMonitor.LogsWhatTheStepUsed
class LearningRateMonitor final : public Callback, public Stateful {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_start(Trainer& trainer, const Batch& batch, int64_t batch_index) override;
  void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& optimizer) override;

  /// Holds the last epoch that was logged.
  StateDict state_dict() const override { return {{"logged_epoch", logged_epoch_}}; }
  void load_state_dict(const StateReader& state) override;

 private:
  bool is_logged(const OptimizerConfig& config, bool by_epoch) const;
  MetricValues values(const OptimizerConfig& config, const std::string& name) const;

  LearningRateMonitorOptions options_;
  std::vector<std::string> names_;  ///< one per optimizer of the Trainer
  int64_t logged_epoch_ = -1;
};

}  // namespace mantissa
