#include <c10/util/Exception.h>

#include "benchmarks/host_syncs.h"

namespace mantissa {

std::unique_ptr<HostSyncs::Counter> count_cuda_syncs() {
  TORCH_CHECK(false, "HostSyncs: this build has no CUDA; build the `cuda` preset (MANTISSA_CUDA=ON)");
}

}  // namespace mantissa
