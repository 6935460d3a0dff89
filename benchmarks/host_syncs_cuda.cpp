// CUPTI reports every call of CUDA's runtime and driver. The calls that wait for the device are counted here.
#include <array>
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <mutex>
#include <string_view>

#include <c10/util/Exception.h>

#include "benchmarks/host_syncs.h"

namespace mantissa {
namespace {

/// Calls that return when the device has finished its earlier work. The names lack the suffixes of versions
/// and of per-thread streams. cudaMemcpyAsync() does not wait; libtorch's reads by it end in
/// cudaStreamSynchronize().
constexpr std::array<std::string_view, 14> kWaits = {"cudaDeviceSynchronize",
                                                     "cudaStreamSynchronize",
                                                     "cudaEventSynchronize",
                                                     "cudaMemcpy",
                                                     "cudaMemcpy2D",
                                                     "cudaMemcpyFromSymbol",
                                                     "cudaFree",
                                                     "cudaFreeHost",
                                                     "cuCtxSynchronize",
                                                     "cuStreamSynchronize",
                                                     "cuEventSynchronize",
                                                     "cuMemcpyDtoH",
                                                     "cuMemcpyHtoD",
                                                     "cuMemFree"};

/// Returns "cuMemcpyDtoH" for "cuMemcpyDtoH_v2_ptds".
std::string_view bare(std::string_view function) { return function.substr(0, function.find('_')); }

void check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  TORCH_CHECK(false, "HostSyncs: ", call, " failed: ", text ? text : "unknown error",
              "; a profiler in this process takes the place of the only subscriber: end it before");
}

class CudaCalls final : public HostSyncs::Counter {
 public:
  CudaCalls() {
    check(cuptiSubscribe(&subscriber_, &CudaCalls::note, this), "cuptiSubscribe");
    check(cuptiEnableDomain(1, subscriber_, CUPTI_CB_DOMAIN_RUNTIME_API), "cuptiEnableDomain(runtime)");
    check(cuptiEnableDomain(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API), "cuptiEnableDomain(driver)");
    // A counter that receives no events would report that nothing waits.
    cudaStreamSynchronize(nullptr);
    const auto recorded = calls();
    if (recorded != std::map<std::string, int64_t>{{"cudaStreamSynchronize", 1}}) {
      cuptiUnsubscribe(subscriber_);
      TORCH_CHECK(false, "HostSyncs: CUPTI reported ", recorded.size(),
                  " kinds of waits for one cudaStreamSynchronize() instead of 1");
    }
    calls_.clear();
  }
  ~CudaCalls() override { cuptiUnsubscribe(subscriber_); }
  CudaCalls(const CudaCalls&) = delete;
  CudaCalls& operator=(const CudaCalls&) = delete;

  std::map<std::string, int64_t> calls() const override {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  static void CUPTIAPI note(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId /*id*/,
                            const void* data) {
    // The runtime calls the driver, which would count the call twice.
    thread_local int runtime_depth = 0;
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    const bool is_runtime = domain == CUPTI_CB_DOMAIN_RUNTIME_API;
    const bool enters = call.callbackSite == CUPTI_API_ENTER;
    if (enters && (is_runtime || runtime_depth == 0))
      static_cast<CudaCalls*>(self)->count(bare(call.functionName));
    if (is_runtime) runtime_depth += enters ? 1 : -1;
  }

  void count(std::string_view function) {
    for (const std::string_view wait : kWaits) {
      if (function != wait) continue;
      const std::lock_guard lock(mutex_);
      ++calls_[std::string(function)];
    }
  }

  CUpti_SubscriberHandle subscriber_{};
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> calls_;
};

}  // namespace

std::unique_ptr<HostSyncs::Counter> count_cuda_syncs() { return std::make_unique<CudaCalls>(); }

}  // namespace mantissa
