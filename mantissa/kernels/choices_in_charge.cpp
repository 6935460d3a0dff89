#include "mantissa/kernels/choice.h"
#include "mantissa/kernels/registration_internal.h"

namespace mantissa {

using registration::in_charge;

void pin_cpu_kernels(const std::string& pins) { in_charge().pin(pins); }

std::vector<std::string> resume_cpu_kernels(const std::string& choices) {
  return in_charge().resume(choices);
}

std::string cpu_kernel_choices() { return in_charge().choices(); }

std::vector<KernelChoice> cpu_kernel_table() { return in_charge().choice_rows(); }

}  // namespace mantissa
