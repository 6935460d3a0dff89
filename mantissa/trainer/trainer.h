#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "mantissa/data/loader.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/metrics.h"
#include "mantissa/trainer/progress.h"
#include "mantissa/trainer/task.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

class EvaluationRun;
struct Checkpoint;

/// The result of Trainer::fit().
struct FitResult {
  int64_t epochs = 0;  ///< completed
  int64_t steps = 0;   ///< optimizer steps, skipped ones included
  int64_t skipped_steps = 0;
  int64_t retries = 0;            ///< windows computed again, with TrainerOptions::on_overflow "retry"
  Metrics metrics;                ///< the last epoch's "train_loss" and every metric that the task logged
  double seconds = 0;             ///< whole fit, validation included
  double step_ms = 0;             ///< median host time of a training batch, over the last 10,000 batches
  double samples_per_second = 0;  ///< over training batches; validation is not counted
  int64_t peak_memory_bytes = 0;  ///< see peak_memory_bytes() in core/device.h
  int interrupted_by = 0;         ///< the signal that ended the run early, else 0
  std::string stopped_by;         ///< the reason given to the first stop(), else empty
};

/// Trains a Task in any precision.
///
/// A fit first calls configure_model, converts the model and moves it to the device, then calls
/// configure_optimizers and the precision's setup_optimizer.
///
/// Each batch then goes through these steps:
///   convert_input and the transfer to the device; a GPU receives the next batch while it computes
///   training_step, inside the forward context
///   zero_grad, in the first batch of an accumulation window
///   division of the loss by the number of batches in the window, and backward, outside the forward context
/// and the last batch of a window also through these:
///   the reduction over processes (Strategy), unscaling and clipping
///   optimizer_step, and the learning-rate schedule, which a skipped step does not advance
///
/// While a run lasts, its device is the thread's current device.
///
/// Signals: Ctrl-C, SIGTERM and SIGHUP end fit() after the current step or validation batch. fit() then
///          returns as if training had finished, without the metrics of an interrupted validation.
/// Threads: a Trainer runs once at a time, and so does a Task. stop() may be called from any thread. Another
///          Trainer may run inside a run, on the same thread. Runs in several threads share process-wide
///          state: the default generators, the default dtype (which 16-true, bf16-true and 64-true set while
///          they compute), float32_matmul_precision, benchmark, and signal handlers. Signals are caught until
///          the fit() that began first returns, and a signal ends every run that is active then.
/// Errors:  c10::ValueError for options that do not fit together, in the constructor. An out-of-memory error
///          keeps its type (c10::OutOfMemoryError, or the CPU allocator's c10::Error). Its context names the
///          batch size, the device, the device's memory and possible remedies.
/// Source:  Lightning's Trainer.
/// Example: examples/trainer.cpp.
class Trainer {
 public:
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until max_epochs, max_steps or max_time is reached, or until a callback calls stop(). Validates
  /// on `val` as the options say. If training and validation log a metric under one name, validation's value
  /// counts. The model stays on the device. The caller chooses which layers are in training mode, and
  /// validation restores each layer's mode.
  ///
  /// `ckpt_path`: the checkpoint to resume from, or a folder, from which the newest complete checkpoint is
  /// taken. The run continues bit for bit if the precision, the options, the data and the machine are the
  /// same. A warning reports the differences.
  /// Errors: c10::ValueError for a checkpoint that is damaged, or that belongs to another model or optimizer.
  FitResult fit(Task& task, Loader& train, Loader* val = nullptr,
                const std::filesystem::path& ckpt_path = {});
  /// Makes one pass without gradients and returns the metrics that validation_step() logged.
  Metrics validate(Task& task, Loader& val);
  /// Makes one pass without gradients and returns the metrics that test_step() logged.
  Metrics test(Task& task, Loader& test);
  /// Makes one pass without gradients and returns the results of predict_step(), one per batch; tensors are
  /// in the default dtype. With `return_predictions` false the results go only to the callbacks.
  std::vector<c10::IValue> predict(Task& task, Loader& data, bool return_predictions = true);

  /// Ends the running fit after the current step, once min_epochs and min_steps are reached. If the fit is
  /// interrupted before, a resumed run ends there too. `why` is the reason shown to the user.
  void stop(std::string why);

  /// Returns everything that a later run needs to continue this fit from the last completed step. The tensors
  /// are the run's own, not copies: take a snapshot() before training continues. Call save_logs() before the
  /// checkpoint counts as written, so that a resumed run misses no row.
  /// Errors: c10::Error outside a fit, and in a run that resumes before its state is loaded (before
  ///         on_train_start()).
  /// Source: docs/checkpoints.md.
  Checkpoint checkpoint();
  /// Whether stop() was called in this fit.
  bool should_stop() const { return !stopped_by().empty(); }
  /// The reason given to the first stop() of this run, else empty.
  std::string stopped_by() const;

  /// Adds values to the current row, which every logger receives. Each step makes one row; a training batch
  /// adds to the row of the step that ends it. For callbacks; a task has log().
  /// Errors: c10::ValueError for a name that loggers refuse (check_metric_name()); c10::Error outside a run.
  void log_metrics(const MetricValues& metrics);
  /// Whether the step of this training batch makes a row (log_every_n_steps) and there is a logger for it.
  bool should_log() const;
  /// Returns when all rows so far are on the disk.
  /// Threads: any.
  void save_logs();

  const TrainerOptions& options() const { return options_; }
  Precision& precision() const { return *precision_; }
  at::Device device() const { return device_; }
  /// The model of the last run, whose task must still exist; null before the first run.
  torch::nn::Module* module() const;
  /// The first optimizer of the last fit(); null before the first fit().
  torch::optim::Optimizer* optimizer() const;
  const std::vector<OptimizerConfig>& optimizers() const;
  /// The stage of the current or last run; kFit before the first run.
  Stage stage() const;
  const FitProgress& progress() const;
  /// The skipped steps among progress().steps.
  const SkippedSteps& skipped_steps() const;
  /// The position from which a run continues that resumes from a checkpoint() taken now. It starts an open
  /// accumulation window again.
  FitProgress resumes_at() const;
  /// Whether that run continues bit for bit. It does not if the checkpoint is taken inside a batch or a
  /// window.
  bool resumes_exactly() const;
  /// The newest value of every metric, from completed epochs and the last validation.
  const Metrics& callback_metrics() const;
  /// The newest value of a metric if it was measured on the current weights: by a validation after the last
  /// batch, or as the mean of an epoch that ends here. Unset if the value is older, or if the metric was
  /// never logged.
  std::optional<double> metric_now(const std::string& name) const;
  /// Whether the sanity validation (num_sanity_val_steps) is running.
  bool is_sanity_checking() const;
  /// The signal that ends the current fit, or ended the last run; 0 if there was none. All processes agree on
  /// it between two batches, so it may be a signal to another process.
  int interrupted_by() const;
  /// Whether this process writes what all processes share, such as checkpoints (see Strategy).
  bool is_global_zero() const;

 private:
  template <typename Run>
  Run& begin(std::shared_ptr<Run> run);
  EvaluationRun& begin_evaluation(Stage stage, Task& task);
  std::shared_ptr<TrainerRun> last_run() const;

  TrainerOptions options_;
  at::Device device_;
  std::shared_ptr<Precision> precision_;
  mutable std::mutex mutex_;          ///< guards run_
  std::shared_ptr<TrainerRun> run_;   ///< the current run, or the last one
  std::shared_ptr<FitRun> last_fit_;  ///< the current fit, or the last one
};

}  // namespace mantissa
