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

/// What fit() returns.
struct FitResult {
  int64_t epochs = 0;  ///< completed
  int64_t steps = 0;   ///< optimizer steps, skipped ones included
  int64_t skipped_steps = 0;
  Metrics metrics;                ///< of the last epoch: "train_loss" and what the task logged
  double seconds = 0;             ///< whole fit, validation included
  double step_ms = 0;             ///< median host time of a training batch, of the last 10,000
  double samples_per_second = 0;  ///< in training batches, validation not counted
  int64_t peak_memory_bytes = 0;  ///< see peak_memory_bytes() in core/device.h
  int interrupted_by = 0;         ///< the signal that ended the run early, else 0
  std::string stopped_by;         ///< why stop() ended the run early, else empty
};

/// Trains a Task in any precision.
///
/// Once: configure_model, conversion and move, configure_optimizers, the precision's setup_optimizer.
/// Order of a batch: convert_input, transfer to the device (BatchTransfer: a GPU gets the next batch while it
/// computes), forward context around training_step, loss divided by the accumulation count, zero_grad (first
/// batch of a window), pre_backward, backward outside the forward context, and at the end of a window:
/// clipping, optimizer_step, learning-rate schedule (not after a skipped step). While a run lasts, its device
/// is the thread's current one.
///
/// Signals: Ctrl-C, SIGTERM and SIGHUP end fit() after the current step or validation batch; it then returns
///          as if it had come to its end, without the metrics of a validation that was cut short.
/// Threads: one run at a time of a Trainer, and of a Task; stop() from any thread. Another Trainer may run
///          inside a run, on the same thread. Runs in several threads share what is the process's own: the
///          default generators, the default dtype (which 16-true, bf16-true and 64-true set while they
///          compute), float32_matmul_precision, benchmark, and signals: they are caught until the fit() that
///          began first returns, and end all that run then.
/// Errors:  c10::ValueError for options that do not fit together, in the constructor. An error for lack of
///          memory (c10::OutOfMemoryError, and the CPU allocator's c10::Error) keeps its type, and its context
///          names the size of the batch, the device, its memory and what would help.
/// Source:  Lightning's Trainer.
/// Example: examples/trainer.cpp.
class Trainer {
 public:
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until max_epochs, max_steps or max_time, or until a callback calls stop(); `val` is validated as
  /// the options say, and of a metric that both log under one name validation's value counts. The model stays
  /// on the device; which of its layers are in training mode is the caller's choice, and validation restores
  /// it.
  ///
  /// `ckpt_path`: the checkpoint to resume from, or a folder, of which the newest whole one is taken. The run
  /// continues bit for bit where the precision, the options, the data and the machine are the same. A warning
  /// says what is not.
  /// Errors: c10::ValueError for a checkpoint that is damaged or of another model or optimizer.
  FitResult fit(Task& task, Loader& train, Loader* val = nullptr,
                const std::filesystem::path& ckpt_path = {});
  /// One pass without gradients; returns what validation_step() logged.
  Metrics validate(Task& task, Loader& val);
  /// The same with test_step().
  Metrics test(Task& task, Loader& test);
  /// One pass without gradients; returns what predict_step() returned, batch by batch, a tensor in the
  /// default dtype. Nothing is kept with `return_predictions` false: then a callback takes it.
  std::vector<c10::IValue> predict(Task& task, Loader& data, bool return_predictions = true);

  /// Ends the fit that runs after the current step, once min_epochs and min_steps are reached. `why` is for the
  /// user.
  void stop(std::string why);

  /// All that a later run needs to continue this fit from the step that ended last. The tensors are the run's
  /// own: take a snapshot() before training continues. Call save_logs() before the checkpoint counts as
  /// written, so that a resumed run misses no row.
  /// Errors: c10::Error outside a fit.
  /// Source: docs/checkpoints.md.
  Checkpoint checkpoint();
  /// Whether stop() was called in this fit.
  bool should_stop() const { return !stopped_by().empty(); }
  /// What the first stop() of this run said, else empty.
  std::string stopped_by() const;

  /// Adds to the row that every logger gets of this moment: one a step, and in a training batch that of the
  /// step which ends it. For callbacks; a task has log().
  /// Errors: c10::ValueError for a name that loggers refuse (check_metric_name()).
  void log_metrics(const MetricValues& metrics);
  /// Whether the step of this training batch makes a row (log_every_n_steps) and there is a logger for it.
  bool should_log() const;
  /// Returns when all rows so far are on the disk.
  /// Threads: any.
  void save_logs();

  const TrainerOptions& options() const { return options_; }
  Precision& precision() const { return *precision_; }
  at::Device device() const { return device_; }
  /// Of the last run, whose task must still live; null before.
  torch::nn::Module* module() const;
  /// The first optimizer of the last fit(); null before.
  torch::optim::Optimizer* optimizer() const;
  const std::vector<OptimizerConfig>& optimizers() const;
  /// What runs now, or ran last; kFit before.
  Stage stage() const;
  const FitProgress& progress() const;
  /// Of progress().steps, those that were skipped.
  const SkippedSteps& skipped_steps() const;
  /// Where a run begins that resumes from what checkpoint() gives now: an open accumulation window is begun
  /// again.
  FitProgress resumes_at() const;
  /// Whether that run continues bit for bit: not from inside a batch or a window.
  bool resumes_exactly() const;
  /// The newest value of every metric: of the epochs that ended and of the last validation.
  const Metrics& callback_metrics() const;
  /// Of those, the value that was measured on the weights as they are: by a validation after the last batch,
  /// or as the mean of an epoch that ends here. Unset for a metric that is older, or was never logged.
  std::optional<double> metric_now(const std::string& name) const;
  /// Whether a validation runs that only looks whether it can.
  bool is_sanity_checking() const;

 private:
  template <typename Run>
  Run& begin(std::shared_ptr<Run> run);
  EvaluationRun& begin_evaluation(Stage stage, Task& task);
  std::shared_ptr<TrainerRun> last_run() const;

  TrainerOptions options_;
  at::Device device_;
  std::shared_ptr<Precision> precision_;
  mutable std::mutex mutex_;          ///< guards run_
  std::shared_ptr<TrainerRun> run_;   ///< that goes on, or the last one
  std::shared_ptr<FitRun> last_fit_;  ///< the same of fit() alone
};

}  // namespace mantissa
