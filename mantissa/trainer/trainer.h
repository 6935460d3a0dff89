#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "mantissa/data/loader.h"
#include "mantissa/precision/nonfinite_trace.h"
#include "mantissa/precision/precision.h"
#include "mantissa/precision/registry.h"
#include "mantissa/precision/replay_point.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/metrics.h"
#include "mantissa/trainer/task.h"

namespace mantissa {

/// Names and meanings are Lightning's.
struct TrainerOptions {
  /// A name from registry.h; unset means "32-true". Not together with `precision_plugin`.
  std::optional<std::string> precision = std::nullopt;
  /// The loss scale and its numbers, float32 batch norm, master weights: what the mode is told beyond its
  /// name.
  PrecisionOptions precision_options = {};
  /// Lightning 1.5's: "native", or "apex" with amp_level "O0" to "O3"; see mode_of_amp_flags().
  std::string amp_backend = "native", amp_level = {};
  /// Hooks of the user's own. Not together with any of the above.
  std::shared_ptr<Precision> precision_plugin = nullptr;
  /// "highest", "high" or "medium": how exactly float32 matrix products are computed while fit() or
  /// validate() runs, in the whole process; see set_float32_matmul_precision(). Unset: as the process has it.
  std::optional<std::string> float32_matmul_precision = std::nullopt;
  /// "auto" (a GPU where there is one), "cpu", "cuda", "cuda:N".
  std::string device = "auto";
  /// -1: no limit; then max_steps must be set.
  int64_t max_epochs = 1;
  /// Optimizer steps, skipped ones included; -1: no limit.
  int64_t max_steps = -1;
  /// Batches whose gradients are added before a step. The last batch of an epoch always steps.
  int64_t accumulate_grad_batches = 1;
  /// 0: no clipping.
  double gradient_clip_val = 0;
  /// "norm" or "value", upper or lower case.
  std::string gradient_clip_algorithm = "norm";
  /// A skipped step leaves no trace: buffers (batch norm's statistics) are as before its window; parameters,
  /// optimizer and schedule are in any case. Costs a copy of the buffers each window.
  bool transactional = false;
  /// On a skipped step, and on a loss or (without a scaler) a gradient that is not finite, runs the window
  /// again under observation and warns with the operation that made the first inf or nan: see
  /// nonfinite_trace.h. At most kMaxTraces warnings a fit; a dynamic loss scale that was too high is none,
  /// unless it is so kOverflowsInARow times in a row. Weights that are not finite are told of once, and
  /// nothing after them.
  /// Memory: holds the batches of a window. Sync: reads each loss, and without a scaler the size of the
  ///         gradients.
  bool trace_nonfinite = false;
  static constexpr int kMaxTraces = 10, kOverflowsInARow = 10;
  /// Validation after every N-th epoch and after the last.
  int64_t check_val_every_n_epoch = 1;
  /// Validation under inference mode; false: with gradients merely off.
  bool inference_mode = true;
  std::vector<std::shared_ptr<Callback>> callbacks = {};
};

/// What fit() returns.
struct FitResult {
  int64_t epochs = 0;  ///< completed
  int64_t steps = 0;   ///< optimizer steps, skipped ones included
  int64_t skipped_steps = 0;
  Metrics metrics;                ///< of the last epoch: "train_loss" and what the task logged
  double seconds = 0;             ///< whole fit, validation included
  double step_ms = 0;             ///< median host time of a training batch
  double samples_per_second = 0;  ///< in training batches, validation not counted
  int64_t peak_memory_bytes = 0;  ///< see peak_memory_bytes() in core/device.h
  int interrupted_by = 0;         ///< the signal that ended the run early, else 0
};

/// Trains a Task in any precision.
///
/// Once: configure_model, conversion and move, configure_optimizers, the precision's setup_optimizer.
/// Order of a batch: convert_input, transfer to the device, forward context around training_step, loss
/// divided by the accumulation count, zero_grad (first batch of a window), pre_backward, backward outside the
/// forward context, and at the end of a window: clipping, optimizer_step, learning-rate schedule (not after a
/// skipped step).
///
/// Signals: Ctrl-C, SIGTERM and SIGHUP end fit() after the current step or validation batch; it then returns
///          as if it had come to its end, without the metrics of a validation that was cut short.
/// Threads: one fit() at a time in a process.
/// Errors:  c10::ValueError for options that do not fit together, in the constructor.
/// Source:  spec 2.2, 2.3, ERR-1, ERR-2, ERR-14, ERR-15.
class Trainer {
 public:
  explicit Trainer(TrainerOptions options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until max_epochs or max_steps; `val` is validated after each epoch, and of a metric that both log
  /// under one name validation's value counts. The model stays on the device; which of its layers are in
  /// training mode is the caller's choice, and validation restores it.
  FitResult fit(Task& task, Loader& train, Loader* val = nullptr);
  /// One pass without gradients; returns what validation_step() logged.
  Metrics validate(Task& task, Loader& val);

  const TrainerOptions& options() const { return options_; }
  Precision& precision() const { return *precision_; }
  at::Device device() const { return device_; }
  /// Of the last fit() or validate(), whose task must still live; null before.
  torch::nn::Module* module() const { return module_; }
  /// Of the last fit(); null before.
  torch::optim::Optimizer* optimizer() const { return optimizers_.optimizer.get(); }

 private:
  void set_up_model(Task& task);
  TrainBatch train_batch(Task& task, const Batch& batch, bool ends_window);
  at::Tensor forward_and_backward(Task& task, const Batch& batch, bool ends_window);
  bool note_for_replay(Task& task, const Batch& batch, bool begins_window);
  void trace_window(Task& task);
  void report_origin(int64_t batch_index);
  Metrics run_validation(Task& task, Loader& val);
  Batch to_device(const Batch& batch) const;

  TrainerOptions options_;
  at::Device device_;
  std::shared_ptr<Precision> precision_;
  GradientClipAlgorithm clip_algorithm_;
  torch::nn::Module* module_ = nullptr;
  OptimizerConfig optimizers_;
  int64_t epoch_ = 0, batch_index_ = 0, window_batches_ = 0;

  struct NotedBatch {
    Batch batch;
    int64_t index = 0;
    ReplayPoint before;
  };
  std::vector<NotedBatch> window_;  ///< while trace_nonfinite may still want it
  std::optional<ReplayPoint> before_window_;
  std::optional<NonFiniteOrigin> origin_;  ///< of this window
  bool origin_is_new_ = false;             ///< found in this batch
  int traces_left_ = 0;
  int64_t steps_taken_ = 0;         ///< in this fit, skipped ones not included
  int64_t overflows_in_a_row_ = 0;  ///< skipped steps whose gradients were too large for the loss scale
  bool is_scaled_ = false;          ///< the loss, before its backward pass
  bool told_of_scale_ = false;
  std::set<std::string> told_of_;  ///< origins: operation, place and cause
};

}  // namespace mantissa
