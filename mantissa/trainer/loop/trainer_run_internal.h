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

/// One fit(), validate(), test() or predict() of a Trainer: what they have in common.
class TrainerRun {
 public:
  /// `earlier`: where the Trainer's last fit ended, which numbers the rows of an evaluation.
  TrainerRun(Trainer& trainer, Stage stage, Task& task, const Progress& earlier = {});
  virtual ~TrainerRun() = default;
  TrainerRun(const TrainerRun&) = delete;
  TrainerRun& operator=(const TrainerRun&) = delete;

  Trainer& trainer() const { return trainer_; }
  Stage stage() const { return stage_; }
  bool is_active() const { return is_active_; }
  /// After it was set up. The task must still live.
  torch::nn::Module* module() const { return module_; }
  const Progress& progress() const { return progress_; }
  const RunMetrics& metrics() const { return metrics_; }
  RunLogs& logs() { return logs_; }
  StopRequest& stop_request() { return stop_request_; }
  bool is_sanity_checking() const { return is_sanity_checking_; }
  /// This run if it is a fit, else null.
  virtual FitRun* as_fit() { return nullptr; }

  /// Task::log().
  template <typename Value>
  void log(const std::string& name, const Value& value) {
    TORCH_CHECK(sink_.means, "log('", name,
                "'): call it inside training_step(), validation_step() or test_step() of a running Trainer");
    check_metric_name("log", name);
    sink_.means->add(name, value, batch_weight_);
    if (sink_.is_training_step) logs_.add_step_value(name, value);
  }

 protected:
  /// Where Task::log() adds to now.
  struct Sink {
    MeanMetrics* means = nullptr;
    bool is_training_step = false;
  };
  /// Points Task::log() somewhere else while it lives.
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

  /// `body` between setup() and teardown() of the callbacks. On an exception all that was opened is closed.
  void run(const std::function<void()>& body);
  /// Drops what a run keeps that ends on an error.
  virtual void release() {}
  /// The signal that has cut the run short, else 0.
  virtual int interrupted_by() const { return 0; }

  template <typename Hook>
  void tell(const Hook& hook) {
    for (const auto& callback : options_.callbacks) hook(*callback);
  }
  /// Makes, converts and moves the model.
  void set_up_model();
  /// Brings batches to the device in the mode's dtypes.
  BatchTransfer batch_transfer() const;
  /// The next batch, in the memory format of the run, whose samples weigh what is logged from here on.
  Batch take(BatchTransfer& transfer);
  /// One pass over `batches` of the loader without gradients. Returns whether it came to its end: a signal
  /// cuts it short.
  bool evaluate(Loader& loader, int64_t batches, const std::function<void(const Batch&, int64_t)>& step);
  /// Whether a signal ends an evaluation here.
  virtual bool is_cut_short() const;
  /// A validation with its hooks, metrics and row. Returns the metrics, none if it was cut short.
  Metrics validation_pass(Loader& val, int64_t batches);
  /// Around a validation that comes to its end, before callbacks hear of it.
  virtual void begin_validation() {}
  virtual void end_validation() {}

  Trainer& trainer_;
  const TrainerOptions& options_;
  Precision& precision_;
  Strategy& strategy_;
  const Stage stage_;
  Task& task_;
  torch::nn::Module* module_ = nullptr;
  Progress progress_;
  RunMetrics metrics_;
  RunLogs logs_;
  StopRequest stop_request_;
  double batch_weight_ = 0;  ///< samples of the batch at hand
  bool is_sanity_checking_ = false;
  Sink sink_;

 private:
  class Active;
  Strategy one_process_;
  /// Adds to an error for lack of memory which batch and device it was, and what would help.
  void explain_if_out_of_memory(c10::Error& error) const;
  void end_logs(const std::string& status);

  bool is_active_ = false;
};

}  // namespace mantissa
