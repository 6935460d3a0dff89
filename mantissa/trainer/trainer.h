#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "mantissa/core/state_dict.h"
#include "mantissa/data/batch_transfer.h"
#include "mantissa/data/loader.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trace/replay_point.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/metrics.h"
#include "mantissa/trainer/task.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa {

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

/// Where a fit stands.
struct FitProgress {
  int64_t epoch = 0;               ///< in training, or the next; from 0
  int64_t batches = 0;             ///< done in this epoch
  int64_t total_batches = 0;       ///< done in all epochs
  int64_t steps = 0;               ///< optimizer steps, skipped ones included
  int64_t validated_batches = -1;  ///< total_batches at the last validation
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
/// Source:  spec 2.2, 2.3, 2.4, ERR-1, ERR-2, ERR-11 to ERR-15.
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
  /// `ckpt_path`: a checkpoint, or a folder of which the newest whole one is taken, to go on from, bit for
  /// bit where the precision, the options, the data and the machine are the same; what is not is told as a
  /// warning.
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

  /// Ends fit() after the current step, once min_epochs and min_steps are reached. `why` is for the user.
  void stop(std::string why);

  /// All that a fit which runs now needs to go on: from the step that ended last. The tensors are the run's
  /// own: take a snapshot() before training goes on. Call save_logs() before it counts as written, so that
  /// a run that goes on from it misses no row.
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
  bool should_log() const { return should_log_; }
  /// Returns when all rows so far are on the disk.
  /// Threads: any.
  void save_logs();

  const TrainerOptions& options() const { return options_; }
  Precision& precision() const { return *precision_; }
  at::Device device() const { return device_; }
  /// Of the last run, whose task must still live; null before.
  torch::nn::Module* module() const { return module_; }
  /// The first optimizer of the last fit(); null before.
  torch::optim::Optimizer* optimizer() const;
  const std::vector<OptimizerConfig>& optimizers() const { return optimizers_; }
  /// What runs now, or ran last.
  Stage stage() const { return stage_; }
  const FitProgress& progress() const { return progress_; }
  /// Of progress().steps, those that were skipped.
  const SkippedSteps& skipped_steps() const { return skipped_steps_; }
  /// Where a run that goes on from what checkpoint() gives now begins: a window that has not ended is begun
  /// again.
  FitProgress resumes_at() const;
  /// Whether it goes on bit for bit: not from inside a batch or a window.
  bool resumes_exactly() const { return window_batches_ == 0 && !in_batch_ && !broke_in_step_; }
  /// The newest value of every metric: of the epochs that ended and of the last validation.
  const Metrics& callback_metrics() const { return callback_metrics_; }
  /// Of those, the value that was measured on the weights as they are: by a validation after the last batch,
  /// or as the mean of an epoch that ends here. Unset for a metric that is older, or was never logged.
  std::optional<double> metric_now(const std::string& name) const;
  /// Whether a validation runs that only looks whether it can.
  bool is_sanity_checking() const { return is_sanity_checking_; }

 private:
  friend class Task;
  friend class TaskOptimizer;
  using Clock = std::chrono::steady_clock;
  class Running;

  // trainer.cpp: what every run does
  void run(Stage stage, Task& task, const std::function<void()>& body);
  template <typename Hook>
  void tell(const Hook& hook) {
    for (const auto& callback : options_.callbacks) hook(*callback);
  }
  /// Adds to an error for lack of memory which batch and device it was, and what would help.
  void explain_if_out_of_memory(c10::Error& error) const;
  void set_up_model(Task& task);
  /// Brings batches to the device in the mode's dtypes.
  BatchTransfer batch_transfer() const;
  /// The next batch, in the memory format of the run, whose samples weigh what is logged from here on.
  Batch take(BatchTransfer& transfer);

  // fit_loop.cpp
  void set_up_optimizers(Task& task);
  void set_up_fit(const Loader& train, const Loader* val);
  void train_epoch(Task& task, Loader& train, Loader* val);
  void check_sanity(Task& task, Loader& val);
  /// Whether training ends here, between two steps, after so many whole epochs.
  bool wants_end(int64_t epochs);
  bool validation_is_due() const;
  bool lacks_last_validation(const Loader* val) const;
  void validate_now(Task& task, Loader& val);
  void end_epoch(Task& task, Loader* val, bool is_whole);
  void note_batch(const TrainBatch& done);
  void advance_step_schedules(const StepResult& step);
  void advance_schedules(OptimizerConfig::Interval interval);
  /// Whether an optimizer took a step in this epoch, so that its schedule advances.
  bool has_stepped(size_t optimizer) const;
  FitResult fit_result();

  // checkpointing.cpp
  static Checkpoint read(const std::filesystem::path& path);
  void load_model(Task& task, const Checkpoint& checkpoint, const std::string& from);
  static void load_master_weights(Task& task, const Checkpoint& checkpoint, const std::string& from);
  void resume(const Checkpoint& checkpoint, const std::string& from);
  void resume_random_numbers();
  std::function<bool(const at::Tensor&)> parameters_kept_elsewhere() const;
  StateDict unstepped_gradients() const;
  void load_unstepped_gradients(const StateReader& state);
  double seconds_so_far() const;
  StateDict setup_state() const;
  std::map<std::string, std::shared_ptr<Logger>> loggers_by_key();
  void resume_logs(const StateReader& state);

  // logging.cpp
  void each_logger(const std::function<void(Logger&)>& call);
  bool step_makes_row(bool ends_window) const;
  void note_step_value(const std::string& name, const MetricValue& value);
  void end_row();
  void end_logs(const std::string& status);

  // train_batch.cpp
  TrainBatch train_batch(Task& task, BatchTransfer& transfer, bool ends_window);
  void step_automatically(Task& task, const Batch& batch, bool ends_window, TrainBatch& done);
  void step_manually(Task& task, const Batch& batch, TrainBatch& done);
  at::Tensor forward_and_backward(Task& task, const Batch& batch);
  void look_and_clip(Task& task, torch::optim::Optimizer& optimizer);
  void end_window(Task& task, const StepResult& step);
  void backward(Task& task, const at::Tensor& loss);
  void clear_gradients(torch::optim::Optimizer& optimizer);
  void prepare_step(torch::optim::Optimizer& optimizer);
  void note_step(const OptimizerConfig& config, const StepResult& step);
  void manual_backward(const at::Tensor& loss);
  void note_metrics(bool window_has_ended);
  StepResult manual_step(OptimizerConfig& config, const std::function<at::Tensor()>& closure);

  // tracing.cpp
  bool note_for_replay(Task& task, const Batch& batch, bool begins_window);
  void trace_window(Task& task);
  void report_origin(int64_t batch_index);

  // evaluation.cpp
  Metrics run_validation(Task& task, Loader& val, int64_t batches);
  /// Whether it came to its end: a signal cuts it short.
  bool evaluate(Task& task, Loader& loader, int64_t batches,
                const std::function<void(const Batch&, int64_t)>& step);

  TrainerOptions options_;
  at::Device device_;
  std::shared_ptr<Precision> precision_;
  GradientClipAlgorithm clip_algorithm_;

  // Of the run.
  Stage stage_ = Stage::kFit;
  Task* task_ = nullptr;  ///< null between runs
  torch::nn::Module* module_ = nullptr;
  MeanMetrics* logging_ = nullptr;  ///< where log() goes now
  double batch_weight_ = 0;
  mutable std::mutex stop_mutex_;
  std::string stopped_by_;
  std::mutex loggers_mutex_;
  std::vector<std::shared_ptr<Logger>> loggers_;  ///< those that have not failed
  /// Being put together.
  struct Row {
    MetricValues metrics;
    int64_t step = 0, epoch = 0;
    at::Tensor skipped_steps = {};
  } row_;
  std::optional<MetricValues> batch_row_;  ///< while a training batch runs: of the step that will end it
  bool should_log_ = false;

  // Of a fit.
  std::vector<OptimizerConfig> optimizers_;
  std::vector<TaskOptimizer> task_optimizers_;
  FitProgress progress_;
  SkippedSteps skipped_steps_;
  Metrics callback_metrics_, epoch_metrics_, validation_metrics_;
  /// Of this epoch's whole windows, of the batches of the one that has not ended, of the batch that runs.
  MeanMetrics training_metrics_, window_metrics_, batch_metrics_;
  int64_t measured_batches_ = -1;  ///< total_batches when training's means were last computed
  Loader* train_loader_ = nullptr;
  std::optional<StateValue> resume_rng_;  ///< until the first batch of a run that goes on is at hand
  /// While a validation runs, and after one that broke off: those it began with, for it is made again.
  std::optional<StateValue> validation_rng_;
  double seconds_before_ = 0;  ///< of the run that this one resumes
  /// By optimizer: its steps in this epoch, and those of them that were skipped.
  std::vector<int64_t> epoch_steps_;
  std::vector<SkippedSteps> epoch_skips_;
  std::vector<bool> unstepped_;  ///< by optimizer: whether manual_backward() came after its last step
  int64_t batches_per_epoch_ = 0, validate_every_ = 0, accumulate_ = 1, window_batches_ = 0;
  StepResult manual_step_;  ///< the last one of this batch
  int interrupted_by_ = 0;
  bool is_automatic_ = true, is_sanity_checking_ = false;
  bool in_batch_ = false;       ///< between its first hook and the last write of its step
  bool in_step_ = false;        ///< the same, until every callback has heard of it
  bool broke_in_step_ = false;  ///< an exception did
  Clock::time_point start_;
  std::vector<double> step_ms_;
  double train_ms_ = 0, samples_ = 0;

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
  int64_t overflows_in_a_row_ = 0;  ///< skipped steps whose gradients were too large for the loss scale
  bool told_of_scale_ = false;
  std::set<std::string> told_of_;  ///< origins: operation, place and cause
};

}  // namespace mantissa
