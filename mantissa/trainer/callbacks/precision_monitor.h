#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "mantissa/core/layer_statistics.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/callback.h"

namespace mantissa {

struct PrecisionMonitorOptions {
  /// Examines the gradients at every N-th optimizer step, counted per optimizer if a task steps several. The
  /// other steps cost nothing. Unset: at the steps that make a row (log_every_n_steps).
  std::optional<int64_t> every_n_steps = std::nullopt;
  /// false: logs only the shares over all parameters together, and those over all tensors of quantized layers.
  bool per_parameter = true;
  /// In modes with FP8 products: also measures, at every N-th optimizer step, the errors of layers' products. Such a step is
  /// examined in all other respects, too. Unset: never.
  std::optional<int64_t> error_every_n_steps = std::nullopt;
};

/// The effect of a number format on the gradients of one step.
struct PrecisionReport {
  /// Shares of a gradient's elements, from 0 to 1.
  struct Shares {
    double zero = 0;       ///< exactly 0: underflowed, or never had a gradient
    double underflow = 0;  ///< 0 or below the smallest normal number
    double overflow = 0;   ///< inf or nan
  };
  int64_t global_step = 0;
  std::optional<double> scale =
      std::nullopt;                         ///< of the loss, in this step; unset if the mode does not scale
  int64_t skipped_steps = 0;                ///< since the previous report, this step included
  std::map<size_t, double> grad_norm = {};  ///< by optimizer, for those that stepped
  Shares total = {};                        ///< over all elements
  std::map<std::string, Shares> gradients = {};  ///< by parameter, for those with a gradient
  /// By layer, for those that the mode computes in FP8: Precision::layer_statistics().
  std::map<std::string, LayerStatistics> layers = {};
};

/// Logs how well the gradients fit the mode's number format: whether the loss scale is high enough, and which
/// layers lose their gradients.
///
/// Names: "precision/scale", "precision/skipped_steps", "precision/grad_norm" (with several optimizers
///        "precision/grad_norm/0", ...), "precision/zero_total", "precision/underflow_total",
///        "precision/overflow_total" and, for each parameter, "precision/zero/NAME",
///        "precision/underflow/NAME", "precision/overflow/NAME". In modes with FP8 products also
///        "quantization/underflows_total", "quantization/overflows_total" and, for each tensor of each layer,
///        "quantization/amax/LAYER/TENSOR", and so "scale_min", "scale_max", "underflows" and "overflows"; for each product,
///        "quantization/error/LAYER/PRODUCT" (see core/layer_statistics.h).
///
/// Numerics: gradients are examined in on_before_optimizer_step: they are those of the whole accumulation
///           window, before the Trainer clips them. Let g be an element of a gradient in the loss's own
///           units, s the loss scale (1 without one), D the gradient's dtype, and T fp16 if the mode computes
///           in it, else D.
///           An element counts as underflow if |g * s| is below the smallest normal number of T (fp16:
///           2^-14), because the backward pass computed it at that magnitude. It also counts if the stored
///           value (g, or g * s while still scaled) is below D's smallest normal number. A module kept in
///           float32 is measured by T too. grad_norm is the 2-norm of all g, computed in float32 or wider; it
///           is inf or nan if an element is.
///           Master weights hold the gradients of their weights, and have their names. A sparse gradient
///           counts its stored elements, and a complex one both parts. A parameter without a gradient or
///           without elements is left out; a tied parameter appears once.
/// Layers:   their tensors are counted in all micro-batches of the window that this process computes, and not in
///           evaluation. Counting changes no bit of the step.
/// Memory:   an examined step needs float32 copies of one gradient at a time, and keeps three numbers per
///           gradient.
/// Sync:     none: the loggers read the values. report() waits for the device.
/// Errors:   c10::ValueError for an interval below 1, in the constructor.
/// Source:   docs/callbacks/precision-monitor.md
/// Example:  precision_monitor_test.cpp, PrecisionMonitor.CountsWhatTheFormatLoses
class PrecisionMonitor final : public Callback, public Stateful {
 public:
  explicit PrecisionMonitor(PrecisionMonitorOptions options = {});
  ~PrecisionMonitor() override;

  /// The report on the last examined step of the current or last fit; unset before the first.
  std::optional<PrecisionReport> report() const;

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_batch_start(Trainer& trainer, const Batch& batch, int64_t batch_index) override;
  void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& optimizer) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;

  /// Holds the number of skipped steps reported so far.
  StateDict state_dict() const override;
  void load_state_dict(const StateReader& state) override;

 private:
  struct Measurement;

  bool is_due(const Trainer& trainer) const;
  /// What of its layers the step is to count to which a batch that begins belongs.
  LayerSampling sampling_of(const Trainer& trainer) const;
  void log(Trainer& trainer) const;

  PrecisionMonitorOptions options_;
  std::unique_ptr<Measurement> now_;   ///< of the current batch
  std::unique_ptr<Measurement> last_;  ///< of the last examined batch
  at::Tensor skipped_before_;          ///< 0-dim
  std::optional<int64_t> sampled_;  ///< the steps before the step whose layers are sampled; unset if none are
};

}  // namespace mantissa
