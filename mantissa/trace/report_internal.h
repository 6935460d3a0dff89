#pragma once

#include <string>

#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_internal {

/// True if the operation, or its derivative in the backward pass, is known to be infinite or undefined
/// somewhere.
bool has_known_domain(const NonFiniteOrigin& origin);

/// Returns the remedy for `origin`, whose other members are filled in.
std::string cure_for(const NonFiniteOrigin& origin);

}  // namespace mantissa::nonfinite_internal
