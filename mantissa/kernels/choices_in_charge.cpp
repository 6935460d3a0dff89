#include <sstream>

#include <c10/util/Exception.h>

#include "mantissa/kernels/choice.h"
#include "mantissa/kernels/environment.h"
#include "mantissa/kernels/registration_internal.h"

namespace mantissa {

using registration::in_charge;

void pin_cpu_kernels(const std::string& pins) {
  const bool are_used = cpu_kernels_by_environment();
  in_charge().pin(pins);
  if (!pins.empty() && !are_used) {
    TORCH_WARN("the CPU kernels '", pins,
               "' are not used: MANTISSA_CPU_KERNELS=0 leaves 16-bit operations to libtorch; unset it, or do "
               "not pin kernels");
  }
}

std::vector<std::string> resume_cpu_kernels(const std::string& choices) {
  std::vector<std::string> refused = in_charge().resume(choices);
  if (cpu_kernels_by_environment()) return refused;
  refused.clear();
  std::istringstream entries(choices);
  for (std::string entry; std::getline(entries, entry, ',');)
    if (!entry.ends_with("=libtorch")) refused.push_back(entry);
  return refused;
}

std::string cpu_kernel_choices() { return in_charge().choices(); }

std::vector<KernelChoice> cpu_kernel_table() { return in_charge().choice_rows(); }

}  // namespace mantissa
