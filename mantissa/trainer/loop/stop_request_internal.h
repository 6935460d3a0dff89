#pragma once

#include <mutex>
#include <string>
#include <utility>

namespace mantissa {

/// Whether Trainer::stop() was called, and why.
/// Threads: any.
class StopRequest {
 public:
  /// Records the first request and ignores later ones.
  void request(std::string why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "stop()" : std::move(why);
  }
  /// Returns the reason of the request; empty if there was none.
  std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

}  // namespace mantissa
