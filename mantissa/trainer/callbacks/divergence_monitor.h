#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

struct DivergenceMonitorOptions {
  /// A run has diverged after this many steps in a row whose loss or gradients were not finite. A dynamic loss scale that
  /// starts too high skips some steps, too; each halves the scale.
  int64_t patience = 20;
  /// A run has also diverged when the mean loss of the last `window` steps is more than `factor` times that of the first
  /// `window`, if that is positive. factor 0: only losses and gradients that are not finite count.
  int64_t window = 20;
  double factor = 2;
};

/// Ends a fit that has diverged: its loss or gradients stay non-finite, or its loss has grown. FitResult::stopped_by gives the
/// reason. While the loss is not finite or far above its start, or a weight is not finite, ModelCheckpoint saves nothing, so
/// its newest checkpoint is the last good state. fit_with_fallback() (fallback.h) continues from there in another mode.
///
/// Like every stop(), it waits for min_epochs and min_steps. A resumed run ends where the uninterrupted one does.
///
/// Sync:   reads the loss of each batch and whether each step was skipped; before a checkpoint, all weights.
/// Errors: c10::ValueError for options out of range, in the constructor.
/// Example: divergence_monitor_test.cpp, DivergenceMonitor.EndsARunWhoseLossStaysNan
class DivergenceMonitor final : public Callback, public Stateful {
 public:
  explicit DivergenceMonitor(DivergenceMonitorOptions options = {});

  /// Why the current or last fit has diverged; empty if it has not.
  const std::string& reason() const { return state_.reason; }
  bool has_diverged() const { return !state_.reason.empty(); }
  /// Whether a fit has had this callback.
  bool has_watched() const { return has_watched_; }

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;
  bool is_state_good(const Trainer& trainer) const override;

  StateDict state_dict() const override;
  void load_state_dict(const StateReader& state) override;

 private:
  /// The state of one fit.
  struct State {
    int64_t bad_steps = 0;            ///< in a row
    std::vector<double> recent = {};  ///< the last finite losses, at most `window`, the oldest first
    std::optional<double> first_mean = std::nullopt;
    std::string reason = {};
  };
  /// Unset before `window` steps.
  std::optional<double> recent_mean() const;
  bool is_above(double factor) const;
  void judge();

  DivergenceMonitorOptions options_;
  State state_;
  bool has_watched_ = false;
  double window_sum_ = 0;      ///< losses of the open accumulation window
  int64_t window_losses_ = 0;  ///< and their number
};

}  // namespace mantissa
