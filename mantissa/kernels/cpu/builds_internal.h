#pragma once

#include <vector>

#include "mantissa/core/cpu_features.h"

namespace mantissa::kernels::cpu {

/// Returns the best of the sorted `builds` that needs no more than `features`. The last build needs none.
template <typename Build>
const Build& build_for(const std::vector<Build>& builds, CpuFeatures features) {
  for (const Build& build : builds)
    if (features.includes(features_of(build.tier))) return build;
  return builds.back();
}

}  // namespace mantissa::kernels::cpu
