#include "mantissa/io/background_writer.h"

#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/error_message.h"
#include "mantissa/core/thread_warnings.h"

namespace mantissa {

BackgroundWriter::BackgroundWriter(size_t max_queued) : max_queued_(max_queued) {
  TORCH_CHECK_VALUE(max_queued > 0, "BackgroundWriter: max_queued is 0; give it room for 1 job or more");
  thread_ = std::thread([this] { run(); });
}

BackgroundWriter::~BackgroundWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const std::exception_ptr& error : errors_) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& what) {
      TORCH_WARN("BackgroundWriter: a last job failed: ", message_of(what));
    } catch (...) {
      TORCH_WARN("BackgroundWriter: a last job failed");
    }
  }
}

void BackgroundWriter::post(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.size() < max_queued_; });
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  rethrow_oldest();
}

void BackgroundWriter::wait_for_room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.size() < max_queued_; });
}

void BackgroundWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
  rethrow_oldest();
}

void BackgroundWriter::rethrow_oldest() {
  if (errors_.empty()) return;
  const std::exception_ptr oldest = std::move(errors_.front());
  errors_.pop_front();
  std::rethrow_exception(oldest);
}

void BackgroundWriter::run() {
  use_thread_warning_handler();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !jobs_.empty() || ending_; });
    if (jobs_.empty()) return;
    std::exception_ptr error;
    {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      changed_.notify_all();
      lock.unlock();
      try {
        job();
      } catch (...) {
        error = std::current_exception();
      }
    }  // the job's data is freed before the job counts as done
    lock.lock();
    if (error) errors_.push_back(std::move(error));
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace mantissa
