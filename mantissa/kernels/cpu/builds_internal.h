#pragma once

#include <vector>

#include "mantissa/core/cpu_features.h"

namespace mantissa::kernels::cpu {

/// The best of `builds`, which are sorted, among those that need no more than `features`; the last needs none.
template <typename Build>
const Build& build_for(const std::vector<Build>& builds, CpuFeatures features) {
  for (const Build& build : builds)
    if (features.includes(features_of(build.tier))) return build;
  return builds.back();
}

}  // namespace mantissa::kernels::cpu
