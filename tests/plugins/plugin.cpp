// A shared object with its own copy of Mantissa, like a plug-in of another program.

#include "plugin.h"

#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/overrides.h"

extern "C" __attribute__((visibility("default"))) const Plugin plugin;
const Plugin plugin = {mantissa::enable_cpu_kernels,
                       mantissa::enable_cpu_kernels_by_default,
                       mantissa::disable_cpu_kernels,
                       mantissa::cpu_kernels_enabled,
                       [](void (*work)(void*), void* argument) {
                         const mantissa::SeparateCasts casts;
                         work(argument);
                       },
                       mantissa::pin_cpu_kernels,
                       mantissa::cpu_kernel_choices};
