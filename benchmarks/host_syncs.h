#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <c10/core/Device.h>

namespace mantissa {

/// Counts the calls that make the host wait for a device, while an instance lives.
///
/// On CUDA these are calls of the runtime and of the driver, by any thread and any library, as CUPTI reports
/// them. On the CPU, for a rehearsal, they are the operators that read a tensor's values in this thread.
///
/// Threads: only one counter can exist in a process at a time.
/// Errors:  c10::Error if CUPTI refuses, as it does if a profiler is already its one subscriber, and for CUDA
///          in a build without CUDA.
class HostSyncs {
 public:
  explicit HostSyncs(at::Device device);
  ~HostSyncs();
  HostSyncs(const HostSyncs&) = delete;
  HostSyncs& operator=(const HostSyncs&) = delete;

  /// Returns the calls so far by name: "cudaStreamSynchronize", "aten::_local_scalar_dense".
  std::map<std::string, int64_t> calls() const;

  struct Counter {
    virtual ~Counter() = default;
    virtual std::map<std::string, int64_t> calls() const = 0;
  };

 private:
  std::unique_ptr<Counter> counter_;
};

/// Counts the calls of CUDA's runtime and driver.
std::unique_ptr<HostSyncs::Counter> count_cuda_syncs();

}  // namespace mantissa
