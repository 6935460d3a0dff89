#pragma once

// For tests and benchmarks.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/record_function.h>

namespace mantissa {

/// Counts the operations of this thread in this scope that read a tensor's values on the host: item() and
/// functions that use it, comparisons with a host result, and shapes that depend on values. On a GPU each of
/// them waits for the device.
class HostReads {
 public:
  HostReads() {
    calls_.clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
          static constexpr std::array<std::string_view, 5> kReads = {"aten::_local_scalar_dense",
                                                                     "aten::equal", "aten::nonzero",
                                                                     "aten::masked_select", "aten::_unique2"};
          if (std::find(kReads.begin(), kReads.end(), fn.name()) != kReads.end()) ++calls_[fn.name()];
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~HostReads() { at::removeCallback(handle_); }
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;
  int count() const {
    int count = 0;
    for (const auto& [name, calls] : calls_) count += static_cast<int>(calls);
    return count;
  }
  /// Returns the number of calls by the operator's name.
  std::map<std::string, int64_t> calls() const { return calls_; }

 private:
  static inline thread_local std::map<std::string, int64_t> calls_;
  at::CallbackHandle handle_;
};

}  // namespace mantissa
