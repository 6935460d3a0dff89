#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

/// Names and meanings are Lightning's.
struct EarlyStoppingOptions {
  /// The metric to watch: one that the task logs, or "train_loss".
  std::string monitor = {};
  /// An improvement is a change by more than this.
  double min_delta = 0;
  /// Training ends after this many checks in a row without an improvement. Each validation or epoch is one
  /// check, so validating every other epoch doubles the epochs.
  int64_t patience = 3;
  /// "min": lower is better; "max".
  std::string mode = "min";
  /// Fails if `monitor` was not logged; false: leaves that check out.
  bool strict = true;
  /// Ends training when `monitor` is inf or nan. false: nan counts as no improvement.
  bool check_finite = true;
  /// Ends training when `monitor` is better than this.
  std::optional<double> stopping_threshold = std::nullopt;
  /// Ends training when `monitor` is worse than this.
  std::optional<double> divergence_threshold = std::nullopt;
  /// Checks at the end of an epoch; false: after each validation. Unset: at the end of an epoch if
  /// val_check_interval and check_val_every_n_epoch place every validation there.
  std::optional<bool> check_on_train_epoch_end = std::nullopt;
};

/// Why an EarlyStopping ended a run. The numbers are Lightning's.
enum class EarlyStoppingReason {
  kNotStopped = 0,
  kStoppingThreshold = 1,
  kDivergenceThreshold = 2,
  kPatienceExhausted = 3,
  kNonFiniteMetric = 4
};

/// Ends a fit when a metric no longer improves; FitResult::stopped_by gives the reason.
///
/// A resumed run ends where the uninterrupted one does. A resumed run that had been stopped stops again at
/// once, unless it is given more patience. A check needs a value from its own epoch or validation; a
/// validation that a signal cut short has none. Nothing is checked in fast_dev_run or before the first step.
///
/// Numerics: float64 (Lightning's: the metric's dtype).
/// Errors:   c10::ValueError for options out of range, in the constructor; with `strict` also for a `monitor`
///           that was not logged.
/// Source:   docs/callbacks/early-stopping.md.
/// Example:  early_stopping_test.cpp, EarlyStopping.EndsAfterNChecksWithoutImprovement
class EarlyStopping final : public Callback, public Stateful {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options);

  /// The number of checks in a row without an improvement, and the best value, of the current or last fit.
  /// Before the first check the best value is inf or -inf.
  int64_t wait_count() const { return state_.wait_count; }
  double best_score() const { return state_.best_score; }
  EarlyStoppingReason stopping_reason() const { return state_.reason; }
  const std::string& stopping_reason_message() const { return state_.message; }
  /// Counted from 0; unset if this callback has not ended the run.
  std::optional<int64_t> stopped_epoch() const { return state_.stopped_epoch; }

  /// The key is different for each monitor and mode.
  std::string state_key() const override;
  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_start(Trainer& trainer) override;
  void on_validation_end(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer, int64_t epoch, int64_t global_step, const Metrics& metrics) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateReader& state) override;

 private:
  /// The state of one fit.
  struct State {
    int64_t wait_count = 0;
    double best_score = 0;
    EarlyStoppingReason reason = EarlyStoppingReason::kNotStopped;
    std::string message = {};
    std::optional<int64_t> stopped_epoch = std::nullopt;
  };

  bool is_better(double a, double b) const { return is_min_ ? a < b : a > b; }
  void check(Trainer& trainer, int64_t epoch, const Metrics& metrics);
  /// Updates best score and wait count, and decides whether training ends.
  void judge(double current);
  void decide(EarlyStoppingReason reason, std::string message);

  EarlyStoppingOptions options_;
  bool is_min_, at_epoch_end_ = true;
  State state_;
};

}  // namespace mantissa
