#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/data/batch_transfer.h"
#include "mantissa/data/loader.h"
#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_logs_internal.h"
#include "mantissa/trainer/loop/run_metrics_internal.h"
#include "mantissa/trainer/loop/stop_request_internal.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

class FitRun;

/// The common part of a Trainer's fit(), validate(), test() and predict().
class TrainerRun {
 public:
  /// `earlier`: the position where the Trainer's last fit ended, which numbers the rows of an evaluation.
  TrainerRun(Trainer& trainer, Stage stage, Task& task, const Progress& earlier = {});
  virtual ~TrainerRun() = default;
  TrainerRun(const TrainerRun&) = delete;
  TrainerRun& operator=(const TrainerRun&) = delete;

  Trainer& trainer() const { return trainer_; }
  Stage stage() const { return stage_; }
  bool is_active() const { return is_active_; }
  /// Null before the setup. The task must still exist.
  torch::nn::Module* module() const { return module_; }
  const Progress& progress() const { return progress_; }
  const RunMetrics& metrics() const { return metrics_; }
  RunLogs& logs() { return logs_; }
  StopRequest& stop_request() { return stop_request_; }
  /// Errors: c10::Error if another run uses the task.
  void check_task_is_free() const;
  bool is_sanity_checking() const { return is_sanity_checking_; }
  /// The signal that cut the run short, else 0. It is the same in all processes.
  virtual int interrupted_by() const { return 0; }
  /// This run if it is a fit, else null.
  virtual FitRun* as_fit() { return nullptr; }

  /// Task::log().
  template <typename Value>
  void log(const std::string& name, const Value& value) {
    TORCH_CHECK(sink_.means, "log('", name,
                "'): call it inside training_step(), validation_step() or test_step() of a running Trainer");
    check_metric_name("log", name);
    sink_.means->add(name, value, batch_weight_);
    if (sink_.makes_step_values) logs_.add_step_value(name, value);
  }

 protected:
  /// The current destination of Task::log().
  struct Sink {
    MeanMetrics* means = nullptr;
    bool makes_step_values = false;  ///< whether a value is also part of its step's row
  };
  /// Redirects Task::log() during its lifetime.
  class LoggingInto {
   public:
    LoggingInto(TrainerRun& run, Sink sink) : run_(run), outer_(run.sink_) { run_.sink_ = sink; }
    ~LoggingInto() { run_.sink_ = outer_; }
    LoggingInto(const LoggingInto&) = delete;
    LoggingInto& operator=(const LoggingInto&) = delete;

   private:
    TrainerRun& run_;
    Sink outer_;
  };

  /// Runs `body` between setup() and teardown() of the callbacks. On an exception everything that was opened
  /// is closed.
  void run(const std::function<void()>& body);
  /// Releases what the run holds, when it ends.
  virtual void release() {}

  template <typename Hook>
  void for_each_callback(const Hook& hook) {
    for (const auto& callback : options_.callbacks) hook(*callback);
  }
  /// Makes, converts and moves the model.
  void set_up_model();
  /// Returns a transfer of batches to the device in the mode's dtypes.
  BatchTransfer batch_transfer() const;
  /// Returns the next batch in the run's memory format. Values logged from here on are weighted by its
  /// samples.
  Batch take(BatchTransfer& transfer);
  /// Makes one pass over `batches` batches of the loader, without gradients. Returns false if a signal cut it
  /// short.
  bool evaluate(Loader& loader, int64_t batches, const std::function<void(const Batch&, int64_t)>& step);
  /// Whether a signal to any process ends an evaluation now.
  virtual bool is_cut_short() const;
  /// Runs a validation with its hooks, metrics and row. Returns the metrics, or none if it was cut short.
  Metrics validation_pass(Loader& val, int64_t batches);
  /// Called at the start of a validation and, before callbacks are, at the end of a complete one.
  virtual void begin_validation() {}
  virtual void end_validation() {}

  Trainer& trainer_;
  const TrainerOptions& options_;
  Precision& precision_;
  Strategy one_process_;  ///< the strategy of a run without one
  Strategy& strategy_;
  const Stage stage_;
  Task& task_;
  torch::nn::Module* module_ = nullptr;
  Progress progress_;
  RunMetrics metrics_;
  RunLogs logs_;
  StopRequest stop_request_;
  double batch_weight_ = 0;  ///< samples of the current batch
  bool is_sanity_checking_ = false;
  Sink sink_;

 private:
  class Active;
  /// Adds the batch size, the device and possible remedies to an out-of-memory error.
  void explain_if_out_of_memory(c10::Error& error) const;
  void end_logs(const std::string& status);

  bool is_active_ = false;
};

}  // namespace mantissa
