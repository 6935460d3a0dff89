#include "mantissa/trainer/loggers/background_logger.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include <c10/util/Exception.h>

#include "mantissa/core/error_message.h"
#include "mantissa/core/thread_warnings.h"
#include "mantissa/trainer/loggers/log_name_internal.h"

namespace mantissa {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

/// The rows on their way to the writer, and the thread that passes them to it.
class BackgroundLogger::Queue {
 public:
  Queue(const std::string& name, std::unique_ptr<LogWriter> writer, const BackgroundOptions& options);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(MetricValues metrics, int64_t step);
  /// Writes the queued rows, then runs `call`, on the calling thread.
  void after_queued(const std::function<void(LogWriter&)>& call);
  void discard_rows(int64_t step, std::optional<int64_t> rows);
  std::optional<int64_t> rows() const;

 private:
  void run();
  void write_queued();
  void fail(std::exception_ptr error);
  bool throw_or_failed();

  const std::string& name_;
  const BackgroundOptions options_;

  std::mutex writing_;  ///< held while writer_ is called; taken before queue_mutex_ where both are
  const std::unique_ptr<LogWriter> writer_;
  std::vector<LogRow> taken_;  ///< rows from the queue, to be written

  mutable std::mutex queue_mutex_;
  std::condition_variable wake_, room_;
  std::vector<LogRow> queue_;
  std::optional<int64_t> rows_;  ///< in the file and on their way to it
  std::exception_ptr error_;     ///< not thrown yet
  bool failed_ = false, stop_ = false;

  std::thread thread_;  ///< last: it uses all of the above
};

BackgroundLogger::Queue::Queue(const std::string& name, std::unique_ptr<LogWriter> writer,
                               const BackgroundOptions& options)
    : name_(name), options_(options), writer_(std::move(writer)), rows_(writer_->rows()) {
  TORCH_CHECK_VALUE(options.flush_seconds > 0 && options.flush_seconds <= 3600 && options.queue_rows >= 2,
                    name_, " logger: need flush_seconds above 0 and at most 3600, and queue_rows >= 2; got ",
                    options.flush_seconds, ", ", options.queue_rows);
  thread_ = std::thread([this] { run(); });
}

BackgroundLogger::Queue::~Queue() {
  {
    const std::scoped_lock lock(queue_mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  try {
    after_queued([](LogWriter& writer) { writer.sync(); });
  } catch (const std::exception& error) {
    TORCH_WARN("the ", name_, " logger has lost rows: ", message_of(error));
  } catch (...) {  // a user's LogWriter may throw anything
    TORCH_WARN("the ", name_, " logger has lost rows: an exception that is not a std::exception");
  }
}

void BackgroundLogger::Queue::push(MetricValues metrics, int64_t step) {
  const double time = now();
  size_t queued = 0;
  {
    std::unique_lock lock(queue_mutex_);
    room_.wait(lock, [&] { return queue_.size() < options_.queue_rows || failed_; });
    if (throw_or_failed()) return;
    queue_.push_back({std::move(metrics), step, time});
    if (rows_) ++*rows_;
    queued = queue_.size();
  }
  // Not for every row: waking a thread costs more than everything else here.
  if (queued == options_.queue_rows / 2) wake_.notify_one();
}

std::optional<int64_t> BackgroundLogger::Queue::rows() const {
  const std::scoped_lock lock(queue_mutex_);
  return rows_;
}

void BackgroundLogger::Queue::discard_rows(int64_t step, std::optional<int64_t> rows) {
  after_queued([&](LogWriter& writer) {
    writer.resume_from(step, rows, now());
    const std::scoped_lock lock(queue_mutex_);
    rows_ = writer.rows();
    if (rows_) *rows_ += static_cast<int64_t>(queue_.size());  // rows that other threads logged meanwhile
  });
}

/// Runs on the logger's thread.
void BackgroundLogger::Queue::run() {
  use_thread_warning_handler();
  const std::chrono::duration<double> interval(options_.flush_seconds);
  for (;;) {
    {
      std::unique_lock lock(queue_mutex_);
      wake_.wait_for(lock, interval,
                     [&] { return stop_ || failed_ || queue_.size() >= options_.queue_rows / 2; });
      if (stop_ || failed_) return;
    }
    const std::scoped_lock lock(writing_);
    try {
      write_queued();
    } catch (...) {
      fail(std::current_exception());
    }
  }
}

/// The caller holds writing_.
void BackgroundLogger::Queue::write_queued() {
  {
    const std::scoped_lock lock(queue_mutex_);
    taken_.swap(queue_);
  }
  room_.notify_all();
  if (taken_.empty()) return;
  writer_->write(taken_);
  taken_.clear();
}

void BackgroundLogger::Queue::after_queued(const std::function<void(LogWriter&)>& call) {
  const std::scoped_lock writing(writing_);
  {
    const std::scoped_lock lock(queue_mutex_);
    if (throw_or_failed()) return;
  }
  try {
    write_queued();
    call(*writer_);
  } catch (...) {
    fail(std::current_exception());
  }
  const std::scoped_lock lock(queue_mutex_);
  throw_or_failed();
}

/// The caller holds writing_.
void BackgroundLogger::Queue::fail(std::exception_ptr error) {
  const std::scoped_lock lock(queue_mutex_);
  failed_ = true;
  error_ = std::move(error);
  rows_.reset();
  queue_.clear();
  taken_.clear();
  room_.notify_all();
}

/// The caller holds queue_mutex_. Rethrows the writer's error the first time; else returns whether it has failed.
bool BackgroundLogger::Queue::throw_or_failed() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return failed_;
}

BackgroundLogger::BackgroundLogger(std::string name, std::filesystem::path log_dir,
                                   std::unique_ptr<LogWriter> writer, const BackgroundOptions& options)
    : name_(std::move(name)),
      log_dir_(log_dir.empty() ? std::move(log_dir) : std::filesystem::absolute(log_dir)),
      queue_(std::make_unique<Queue>(name_, std::move(writer), options)) {}

BackgroundLogger::~BackgroundLogger() = default;

void BackgroundLogger::log_metrics(MetricValues metrics, int64_t step) {
  for (const auto& [name, value] : metrics) check_metric_name("log_metrics", name);
  queue_->push(std::move(metrics), step);
}

void BackgroundLogger::log_hyperparams(const Hyperparameters& params) {
  for (const auto& [name, value] : params) {
    check_log_name("log_hyperparams", name);
    const auto* const text = std::get_if<std::string>(&value);
    TORCH_CHECK_VALUE(!text || is_utf8(*text), "log_hyperparams: the value of '", name,
                      "' is not UTF-8; convert it");
  }
  queue_->after_queued([&](LogWriter& writer) { writer.write_hyperparams(params, now()); });
}

std::optional<int64_t> BackgroundLogger::rows() const { return queue_->rows(); }

void BackgroundLogger::resume_from(int64_t step) { queue_->discard_rows(step, std::nullopt); }

void BackgroundLogger::resume_from(int64_t step, int64_t rows) {
  TORCH_CHECK_VALUE(rows >= 0, "resume_from: rows=", rows, "; give a value from rows(), or omit it");
  queue_->discard_rows(step, rows);
}

void BackgroundLogger::save() {
  queue_->after_queued([](LogWriter& writer) { writer.sync(); });
}

void BackgroundLogger::finalize(const std::string& status) {
  queue_->after_queued([&](LogWriter& writer) {
    writer.finish(status, now());
    writer.sync();
  });
}

}  // namespace mantissa
