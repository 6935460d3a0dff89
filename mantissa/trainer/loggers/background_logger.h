#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
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
/// Threads: calls come from several, but never two at once.
/// Errors:  what it throws reaches the user once; it is not called again.
class LogWriter {
 public:
  virtual ~LogWriter() = default;
  /// At least one. They must be in the system's hands when it returns. read() each value once: it may wait
  /// for a device.
  virtual void write(std::span<const LogRow> rows) = 0;
  virtual void write_hyperparams(const Hyperparameters& params, double wall_time) = 0;
  /// Of the rows in its file, from whatever logger, those after the first `rows` are void; if that is unset,
  /// those of steps after `step`.
  virtual void resume_from(int64_t step, std::optional<int64_t> rows, double wall_time) = 0;
  /// Those in its file; unset if resume_from() does not look at `rows`.
  virtual std::optional<int64_t> rows() const { return std::nullopt; }
  virtual void finish(const std::string& status, double wall_time) = 0;
  /// Waits for the disk.
  virtual void sync() = 0;
};

struct BackgroundOptions {
  /// Rows wait at most this long in memory: what `kill -9` can cost.
  double flush_seconds = 1;
  /// Rows in memory; log_metrics() waits while it is full, rather than to lose one.
  size_t queue_rows = 4096;
};

/// A logger whose log_metrics() costs the training thread about a microsecond: rows go into a queue, from
/// which a thread of the logger's own hands them to its LogWriter every `flush_seconds`, sooner when the
/// queue is half full. All other calls wait until what came before them is written.
///
/// Threads: all calls from any thread.
/// Sync:    values on a device are waited for by the logger's thread.
/// Memory:  `queue_rows` rows at most, twice.
/// Files:   log_dir() is made absolute: the program may change its folder while it logs.
/// Errors:  c10::ValueError from log_metrics() and log_hyperparams() for a name that is empty, is not UTF-8,
///          has control characters, or is "step" or "wall_time", which formats use; nothing is logged then. A
///          failure to write is thrown once by the next call, whatever it is, and the logger drops everything
///          from then on. The destructor writes what is left; a failure that no call was there to throw it
///          warns of.
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
  void run();
  void write_queued();
  void after_queued(const std::function<void(LogWriter&)>& call);
  void void_rows(int64_t step, std::optional<int64_t> rows);
  void fail(std::exception_ptr error);
  bool takes_nothing();

  const std::string name_;
  const std::filesystem::path log_dir_;
  const BackgroundOptions options_;

  std::mutex writing_;  ///< held while writer_ is called; taken before queue_mutex_ where both are
  const std::unique_ptr<LogWriter> writer_;
  std::vector<LogRow> taken_;  ///< out of the queue, to be written

  mutable std::mutex queue_mutex_;
  std::condition_variable wake_, room_;
  std::vector<LogRow> queue_;
  std::optional<int64_t> rows_;  ///< in the file and on their way to it
  std::exception_ptr error_;     ///< not told yet
  bool failed_ = false, stop_ = false;

  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace mantissa
