#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mantissa/trainer/loggers/logger.h"

namespace mantissa {

/// One call of log_metrics(), on its way to a file.
struct LogRow {
  MetricValues metrics;
  int64_t step = 0;
  double wall_time = 0;  ///< seconds since 1970, when it was logged
};

/// The format of a BackgroundLogger: turns rows into a file.
/// Threads: calls come from several threads, but never two at once.
/// Errors:  an exception reaches the user once; the writer is not called again.
class LogWriter {
 public:
  virtual ~LogWriter() = default;
  /// Writes the rows, at least one. They must be handed to the operating system before it returns. Call
  /// read() once per value, because it may wait for a device.
  virtual void write(std::span<const LogRow> rows) = 0;
  virtual void write_hyperparams(const Hyperparameters& params, double wall_time) = 0;
  /// Discards rows in its file, whichever logger wrote them: all after the first `rows` or, if that is unset,
  /// all of steps after `step`.
  virtual void resume_from(int64_t step, std::optional<int64_t> rows, double wall_time) = 0;
  /// The number of rows that its file had when it was opened, or after the last resume_from(); unset if
  /// resume_from() ignores `rows`.
  virtual std::optional<int64_t> rows() const { return std::nullopt; }
  virtual void finish(const std::string& status, double wall_time) = 0;
  /// Returns when everything is on the disk.
  virtual void sync() = 0;
};

struct BackgroundOptions {
  /// Rows wait in memory at most this long; `kill -9` loses them.
  double flush_seconds = 1;
  /// Maximum number of rows in memory. log_metrics() waits while the queue is full, so that no row is lost.
  size_t queue_rows = 4096;
};

/// A logger whose log_metrics() costs the training thread about a microsecond: it only puts rows into a
/// queue. The logger's own thread passes them to its LogWriter every `flush_seconds`, or sooner when the
/// queue is half full. log_hyperparams(), resume_from(), save() and finalize() wait until all earlier rows
/// are written.
///
/// Threads: all calls may come from any thread.
/// Sync:    the logger's thread waits for values on a device.
/// Memory:  at most 2 * `queue_rows` rows.
/// Files:   log_dir() is an absolute path, because the program may change its working directory while it
///          logs.
/// Errors:  c10::ValueError from log_metrics() and log_hyperparams() for a name that is empty, is not UTF-8,
///          has control characters, or is "step" or "wall_time", which formats use; nothing is logged then.
///          The next call throws a write failure, once, and the logger drops everything from then on. The
///          destructor writes the remaining rows, and warns of a failure that no call has thrown.
class BackgroundLogger : public Logger {
 public:
  BackgroundLogger(std::string name, std::filesystem::path log_dir, std::unique_ptr<LogWriter> writer,
                   const BackgroundOptions& options);
  ~BackgroundLogger() override;
  BackgroundLogger(const BackgroundLogger&) = delete;
  BackgroundLogger& operator=(const BackgroundLogger&) = delete;

  std::string name() const override { return name_; }
  std::filesystem::path log_dir() const override { return log_dir_; }
  void log_metrics(MetricValues metrics, int64_t step) override;
  void log_hyperparams(const Hyperparameters& params) override;
  std::optional<int64_t> rows() const override;
  void resume_from(int64_t step) override;
  void resume_from(int64_t step, int64_t rows) override;
  void save() override;
  void finalize(const std::string& status) override;

 private:
  class Queue;
  const std::string name_;
  const std::filesystem::path log_dir_;
  const std::unique_ptr<Queue> queue_;
};

}  // namespace mantissa
