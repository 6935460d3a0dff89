#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace mantissa {

/// One thread that writes, so that training need not wait for the disk. Jobs run one at a time, in the order
/// in which they were posted. For checkpoints see save_checkpoint_later().
///
/// No job is ever lost: each one runs, also after an earlier one has thrown and while an exception of the
/// caller unwinds through the destructor.
/// Memory:  at most `max_queued` jobs wait, with the data they hold; post() waits for room.
/// Threads: any number may call; a job must not.
/// Errors:  an exception of a job comes out of the next call of post() or flush(), the oldest first.
///          Exceptions that are left when the destructor has run all jobs cause warnings through libtorch's
///          logging.
/// Example: background_writer_test.cpp, BackgroundWriter.RunsEveryJobInOrder
class BackgroundWriter {
 public:
  explicit BackgroundWriter(size_t max_queued = 1);
  /// Runs the waiting jobs.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  /// Gives the writer a job. If it throws, which happens for an earlier job's error, `job` has still been
  /// accepted.
  void post(std::function<void()> job);
  /// Waits until post() would not have to wait. Call it before making a job that holds much memory.
  void wait_for_room();
  /// Waits until every job has run.
  void flush();

 private:
  void run();
  void rethrow_oldest();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::deque<std::exception_ptr> errors_;
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;  ///< last, because it uses all members above
};

}  // namespace mantissa
