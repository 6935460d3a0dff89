#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// One number to log: a double, or a tensor that a device may still have to compute.
///
/// Shapes:  any tensor of one real element.
/// Sync:    a tensor on the CPU is read at once. A tensor on a device is neither waited for nor copied here;
///          read() does that, on the thread that writes. Its content must not be changed in place until then.
/// Errors:  c10::ValueError for a tensor that is not one real number.
class MetricValue {
 public:
  MetricValue(double value) : value_(value) {}  // NOLINT: {"loss", 0.5} is what callers write
  MetricValue(const at::Tensor& value);         // NOLINT
  /// Threads: any.
  double read() const;

 private:
  struct OnDevice;
  double value_ = 0;
  std::shared_ptr<const OnDevice> on_device_;
};

/// Values by name. For a Metrics m: MetricValues(m.begin(), m.end()).
using MetricValues = std::map<std::string, MetricValue>;

/// Errors: c10::ValueError, with `function` in its message, for a name that is empty, is not UTF-8, has
///         control characters, or is "step" or "wall_time", which formats use.
void check_metric_name(const char* function, const std::string& name);

/// Settings of a run by name, such as learning rates and model names.
using Hyperparameter = std::variant<bool, int64_t, double, std::string>;
using Hyperparameters = std::map<std::string, Hyperparameter>;

/// Keeps the measurements of a run. Names are Lightning's. Mantissa has CSVLogger, TensorBoardLogger and
/// JSONLinesLogger; a run may have several.
///
/// Errors: a logger that can no longer write throws once, from the next call of any kind, and accepts nothing
///         from then on. The caller decides whether the run continues without it.
class Logger {
 public:
  virtual ~Logger() = default;

  /// "csv", "tensorboard", ...
  virtual std::string name() const = 0;
  /// The folder that holds its files; empty if it writes none.
  virtual std::filesystem::path log_dir() const { return {}; }

  /// Logs a row of values measured at `step`, the number of optimizer steps so far. Two calls with one step
  /// make two rows.
  virtual void log_metrics(MetricValues metrics, int64_t step) = 0;
  /// Called before the first row. It may be called again: newer values of a name replace older ones.
  virtual void log_hyperparams(const Hyperparameters& params) = 0;
  /// The number of rows so far, for a checkpoint to keep; it includes rows that its files had before. Unset
  /// if the logger does not count them.
  /// Threads: any; does not wait for rows that are being written.
  virtual std::optional<int64_t> rows() const { return std::nullopt; }
  /// Reports that the run resumes from a checkpoint of `step` (-1: it begins anew). Rows of later steps,
  /// which a killed run left, become void.
  virtual void resume_from(int64_t /*step*/) {}
  /// The same for a checkpoint that stores rows(): all rows after the first `rows` become void. These include
  /// rows logged at `step` itself after the checkpoint, which step numbers do not reveal.
  virtual void resume_from(int64_t step, int64_t /*rows*/) { resume_from(step); }
  /// Returns when all rows so far are on the disk. A Trainer calls it from the thread that writes
  /// checkpoints, while other threads log. Call it before a checkpoint counts as written: a run that resumes
  /// from it does not log earlier rows again.
  virtual void save() {}
  /// Ends the run; `status` is "success", "failed" or "interrupted". All rows are then on the disk. Logging
  /// may continue: another fit() of the same Trainer is another run.
  virtual void finalize(const std::string& /*status*/) {}
};

}  // namespace mantissa
