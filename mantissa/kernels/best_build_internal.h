#pragma once

#include <algorithm>
#include <vector>

#include "mantissa/core/cpu_tier.h"

namespace mantissa {

/// The first of `builds` that cpu_tier() allows; they are sorted, and the last runs on any CPU.
template <typename Build>
const Build& best_build(const std::vector<Build>& builds) {
  return *std::find_if(builds.begin(), builds.end(),
                       [](const Build& each) { return each.tier <= cpu_tier(); });
}

}  // namespace mantissa
