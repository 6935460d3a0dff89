#pragma once

#include <mutex>
#include <string>
#include <utility>

namespace mantissa {

/// Trainer::stop(). Threads: any.
class StopRequest {
 public:
  /// The first one counts.
  void request(std::string why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "stop()" : std::move(why);
  }
  /// Empty if nobody has asked.
  std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

}  // namespace mantissa
