#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

struct PrecisionMonitorOptions {
  /// Looks at every so many optimizer steps, of each optimizer where a task steps several; the other steps
  /// pay nothing. Unset: at those that make a row (log_every_n_steps).
  std::optional<int64_t> every_n_steps = std::nullopt;
  /// false: logs shares of all parameters together only.
  bool per_parameter = true;
};

/// What a number format did to the gradients of one step.
struct PrecisionReport {
  /// Of the elements of a gradient, from 0 to 1.
  struct Shares {
    double zero = 0;       ///< exactly 0: what underflowed, and what never had a gradient
    double underflow = 0;  ///< 0 or below the smallest normal number
    double overflow = 0;   ///< inf or nan
  };
  int64_t global_step = 0;
  std::optional<double> scale =
      std::nullopt;           ///< of the loss, in this step; unset where the mode does not scale
  int64_t skipped_steps = 0;  ///< since the report before, this step included
  std::map<size_t, double> grad_norm = {};       ///< by optimizer, of those that stepped
  Shares total = {};                             ///< of all elements
  std::map<std::string, Shares> gradients = {};  ///< by parameter, of those with a gradient
};

/// Logs how well the gradients fit into the mode's number format: whether the loss scale is high enough, and
/// which layers lose their gradients.
///
/// Names: "precision/scale", "precision/skipped_steps", "precision/grad_norm" (of several optimizers
///        "precision/grad_norm/0", ...), "precision/zero_total", "precision/underflow_total",
///        "precision/overflow_total" and, for each parameter, "precision/zero/NAME",
///        "precision/underflow/NAME", "precision/overflow/NAME".
///
/// Numerics: gradients are looked at in on_before_optimizer_step: those of the whole window, before the
///           Trainer clips them. Let g be an element of a gradient as the loss's own units have it, s the
///           loss scale (1 without one), D the gradient's dtype, T fp16 where the mode computes in it,
///           else D.
///           It counts as underflow if |g * s| < the smallest normal number of T (fp16: 2^-14), for so the
///           backward pass saw it, or if what is stored, g or still g * s, is below D's own. A module kept in
///           float32 is measured by T too. grad_norm is the 2-norm of all g, in float32 at least, inf or nan
///           if one of them is.
///           Float32 copies of weights (master_weights) hold the gradients of their weights, and go by their
///           names; of a sparse gradient its stored elements count; of a complex one both parts. A parameter
///           without a gradient, or without elements, is left out; a tied one is there once.
/// Memory:   a step that is looked at needs float32 copies of one gradient at a time, and keeps three numbers
///           of each.
/// Sync:     none: loggers read. report() waits for the device.
/// Errors:   c10::ValueError for every_n_steps below 1, in the constructor.
/// Source:   docs/callbacks/precision-monitor.md
/// Example:  precision_monitor_test.cpp, PrecisionMonitor.CountsWhatTheFormatLoses
class PrecisionMonitor final : public Callback, public Stateful {
 public:
  explicit PrecisionMonitor(PrecisionMonitorOptions options = {});
  ~PrecisionMonitor() override;

  /// Of the last step that was looked at in this fit, or the last one; unset before the first.
  std::optional<PrecisionReport> report() const;

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_start(Trainer& trainer, const Batch& batch, int64_t batch_index) override;
  void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& optimizer) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;

  /// The skipped steps that have been reported.
  StateDict state_dict() const override;
  void load_state_dict(const StateReader& state) override;

 private:
  struct Look;

  bool is_due(const Trainer& trainer) const;
  void log(Trainer& trainer) const;

  PrecisionMonitorOptions options_;
  std::unique_ptr<Look> now_;   ///< of the batch that runs
  std::unique_ptr<Look> last_;  ///< a whole one
  at::Tensor skipped_before_;   ///< 0-dim
};

}  // namespace mantissa
