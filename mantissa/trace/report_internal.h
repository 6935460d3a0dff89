#pragma once

#include <string>

#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_internal {

/// Whether the operation, or in the backward pass its derivative, is known to be infinite or undefined
/// somewhere.
bool has_known_domain(const NonFiniteOrigin& origin);

/// What to do about `origin`, whose other members are filled in.
std::string cure_for(const NonFiniteOrigin& origin);

}  // namespace mantissa::nonfinite_internal
