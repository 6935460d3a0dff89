#pragma once

#include <mutex>
#include <string>
#include <utility>

namespace mantissa {

/// The state of Trainer::stop(). Threads: any.
class StopRequest {
 public:
  /// Only the first request counts.
  void request(std::string why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "stop()" : std::move(why);
  }
  /// Empty if there was no request.
  std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

}  // namespace mantissa
