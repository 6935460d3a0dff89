#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/trainer/loggers/logger.h"
#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_part_internal.h"

namespace mantissa {

/// The rows of a run, on their way to its loggers. Each step makes one row.
///
/// A logger that fails is left out from then on, with a warning.
/// Threads: save_to_disk() from any thread; everything else from the run's thread.
class RunLogs final : public RunPart {
 public:
  explicit RunLogs(std::vector<std::shared_ptr<Logger>> loggers);

  /// `makes_row`: whether the step of the training batch that begins now makes a row.
  void begin_batch(bool makes_row);
  bool has_loggers() const { return has_loggers_; }
  /// Whether the current training batch belongs to a step that makes a row.
  bool makes_row() const { return makes_row_; }
  /// Adds a value from training_step() to the row of its step, as NAME_step, if that step makes a row.
  /// `value`: what a MetricValue can be made of. That is done only for a row, because it reads a tensor that
  /// is in the host's memory.
  template <typename Value>
  void add_step_value(const std::string& name, const Value& value) {
    if (makes_row_ && batch_row_) batch_row_->insert_or_assign(name + "_step", MetricValue(value));
  }
  void end_batch(const Progress& progress);
  /// Drops the row of a batch that has failed. What is logged after it, as by on_exception(), makes a row of
  /// its own.
  void abandon_batch();

  /// Adds to the row of the current step.
  /// Errors: c10::ValueError for a name that loggers refuse.
  void add(const MetricValues& metrics, const Progress& progress);
  /// Sends the current row to the loggers.
  void end_row();
  void save_to_disk();
  void finalize(const std::string& status);

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  struct Row {
    MetricValues metrics = {};
    int64_t step = 0, epoch = 0;
    at::Tensor skipped_steps = {};
  };

  /// The loggers by their keys in a checkpoint, without those that have failed.
  std::map<std::string, std::shared_ptr<Logger>> by_key() const;
  void each(const std::function<void(Logger&)>& call);

  const bool has_loggers_;
  bool makes_row_ = false;
  mutable std::mutex mutex_;  ///< guards loggers_
  std::vector<std::shared_ptr<Logger>> loggers_;
  Row row_;
  std::optional<MetricValues> batch_row_;  ///< set while a training batch runs; its step's row
};

}  // namespace mantissa
