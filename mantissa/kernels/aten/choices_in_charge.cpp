#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/environment.h"
#include "mantissa/kernels/aten/registration_internal.h"

namespace mantissa {

using registration::in_charge;

namespace {

/// Returns the entries of pins or choices that name one of Mantissa's kernels.
std::vector<std::string> own_kernels(const std::string& choices) {
  std::vector<std::string> own;
  for (const std::string& entry : choice::entries_of(choices)) {
    const std::string kernel = entry.substr(entry.find('=') + 1);  // the whole entry if it has no =
    if (kernel != "libtorch" && kernel != "measured") own.push_back(entry);
  }
  return own;
}

}  // namespace

void pin_cpu_kernels(const std::string& pins) {
  const bool are_used = cpu_kernels_by_environment();
  in_charge().pin(pins);
  if (!are_used && !own_kernels(pins).empty()) {
    TORCH_WARN("the CPU kernels '", pins,
               "' are not used: MANTISSA_CPU_KERNELS=0 leaves 16-bit operations to libtorch; unset it, or do "
               "not pin kernels");
  }
}

std::vector<std::string> resume_cpu_kernels(const std::string& choices) {
  const std::vector<std::string> refused = in_charge().resume(choices);
  return cpu_kernels_by_environment() ? refused : own_kernels(choices);
}

std::string cpu_kernel_choices() { return cpu_kernels_by_environment() ? in_charge().choices() : "libtorch"; }

std::vector<KernelChoice> cpu_kernel_table() { return in_charge().choice_rows(); }

}  // namespace mantissa
