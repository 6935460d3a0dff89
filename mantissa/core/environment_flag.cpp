#include <cstdlib>
#include <string_view>

#include <c10/util/Exception.h>

#include "mantissa/core/environment_flag_internal.h"

namespace mantissa {

bool environment_flag(const char* name, const char* off) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0' || std::string_view(value) == "1") return true;
  TORCH_CHECK_VALUE(std::string_view(value) == "0", name, "=", value, ": choose 0 (", off,
                    ") or 1, or unset it");
  return false;
}

}  // namespace mantissa
