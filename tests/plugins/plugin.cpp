// A shared object that holds a copy of Mantissa of its own, as a plug-in of somebody's program does.

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
