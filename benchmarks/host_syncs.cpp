#include "benchmarks/host_syncs.h"

#include "mantissa/core/host_reads_internal.h"

namespace mantissa {
namespace {

struct Reads final : HostSyncs::Counter {
  std::map<std::string, int64_t> calls() const override { return reads.calls(); }
  HostReads reads;
};

}  // namespace

HostSyncs::HostSyncs(at::Device device)
    : counter_(device.is_cuda() ? count_cuda_syncs() : std::make_unique<Reads>()) {}
HostSyncs::~HostSyncs() = default;

std::map<std::string, int64_t> HostSyncs::calls() const { return counter_->calls(); }

}  // namespace mantissa
