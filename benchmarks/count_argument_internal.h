#pragma once

#include <cstdint>

#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"

namespace mantissa {

/// Returns argument `i` of a program, or `otherwise` if there are fewer.
/// Errors: c10::ValueError, which calls the argument `name`, if it is no number above 0.
inline int64_t count_argument(int argc, char** argv, int i, const char* name, int64_t otherwise) {
  if (i >= argc) return otherwise;
  const auto parsed = parse_number<int64_t>(argv[i]);
  TORCH_CHECK_VALUE(parsed.value && *parsed.value > 0, name, " '", argv[i], "' is no number above 0");
  return *parsed.value;
}

}  // namespace mantissa
