#include "mantissa/kernels/aten/environment.h"

#include "mantissa/core/cpu_features.h"
#include "mantissa/core/environment_flag_internal.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/kernels/aten/choice.h"

namespace mantissa {

bool cpu_kernels_by_environment() {
  return environment_flag("MANTISSA_CPU_KERNELS", "libtorch's own CPU kernels");
}

void check_environment() {
  cpu_tier();  // MANTISSA_MAX_ISA
  cpu_kernels_by_environment();
  threads_apart_by_environment();
  check_kernel_pins_of_environment();  // MANTISSA_KERNELS
}

}  // namespace mantissa
