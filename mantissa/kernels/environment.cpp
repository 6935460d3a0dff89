#include "mantissa/kernels/environment.h"

#include <cstdlib>
#include <string_view>

#include <c10/util/Exception.h>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/kernels/choice.h"

namespace mantissa {

bool cpu_kernels_by_environment() {
  const char* const value = std::getenv("MANTISSA_CPU_KERNELS");
  if (value == nullptr || *value == '\0' || std::string_view(value) == "1") return true;
  TORCH_CHECK_VALUE(std::string_view(value) == "0", "MANTISSA_CPU_KERNELS=", value,
                    ": choose 0 (libtorch's own CPU kernels) or 1, or unset it");
  return false;
}

void check_environment() {
  cpu_tier();  // MANTISSA_MAX_ISA
  cpu_kernels_by_environment();
  threads_apart_by_environment();
  check_kernel_pins_of_environment();  // MANTISSA_KERNELS
}

}  // namespace mantissa
