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

/// One number to log: given as such, or as a tensor that need not have been computed yet.
///
/// Shapes:  any tensor of one real element.
/// Sync:    a tensor on the CPU is read at once. One on a device is neither waited for nor copied here:
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

/// Values by name. Of a Metrics m: MetricValues(m.begin(), m.end()).
using MetricValues = std::map<std::string, MetricValue>;

/// Errors: c10::ValueError, in the name of `function`, for a name that is empty, is not UTF-8, has control
///         characters, or is "step" or "wall_time", which formats use.
void check_metric_name(const char* function, const std::string& name);

/// What a run was told, by name: learning rates, names of models.
using Hyperparameter = std::variant<bool, int64_t, double, std::string>;
using Hyperparameters = std::map<std::string, Hyperparameter>;

/// Keeps what a run measures. Names are Lightning's. Mantissa's own are CSVLogger, TensorBoardLogger and
/// JSONLinesLogger; a run may have several.
///
/// Errors: a logger that can no longer write throws once, from the next call of any kind, and takes nothing
///         from then on: it is the caller's choice whether the run goes on without it.
class Logger {
 public:
  virtual ~Logger() = default;

  /// "csv", "tensorboard", ...
  virtual std::string name() const = 0;
  /// The folder that holds its files; empty if it writes none.
  virtual std::filesystem::path log_dir() const { return {}; }

  /// A row: what was measured at `step`, the number of optimizer steps so far. Two calls with one step are
  /// two rows.
  virtual void log_metrics(MetricValues metrics, int64_t step) = 0;
  /// Before the first row. May be called again: newer values of a name replace older ones.
  virtual void log_hyperparams(const Hyperparameters& params) = 0;
  /// For a checkpoint to keep: the rows so far, those that its files held from before among them; unset if it
  /// does not count them. Threads: any; does not wait for what is being written.
  virtual std::optional<int64_t> rows() const { return std::nullopt; }
  /// Tells that the run goes on from a checkpoint of `step` (-1: anew): rows of later steps, which a killed
  /// run left, are void.
  virtual void resume_from(int64_t /*step*/) {}
  /// The same of a checkpoint that has kept rows(): all rows after the first `rows` are void, also those that
  /// were logged at `step` itself, which steps cannot tell from those before the checkpoint.
  virtual void resume_from(int64_t step, int64_t /*rows*/) { resume_from(step); }
  /// Returns when all rows so far are on the disk. A Trainer calls it from whatever thread writes
  /// checkpoints, while others log. Call it before a checkpoint counts as written: a run that goes on from
  /// there does not log earlier rows again.
  virtual void save() {}
  /// The run is over: "success" or what else it came to ("failed", "interrupted"). All rows are on the disk
  /// then. Logging may go on: another fit() of the same Trainer is another run.
  virtual void finalize(const std::string& /*status*/) {}
};

}  // namespace mantissa
