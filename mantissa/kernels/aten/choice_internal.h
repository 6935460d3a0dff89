#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/kernel_family_internal.h"
#include "mantissa/kernels/cpu/builds_internal.h"

namespace mantissa {

/// A kernel of one of our tiers, or libtorch's.
struct Kernel {
  std::optional<CpuTier> tier;  ///< none: libtorch's kernel
  bool operator==(const Kernel&) const = default;
};
constexpr Kernel kLibtorchs{};

/// Returns the kernel for `family` in `element`: the pinned one, or the fastest on this CPU. The first call
/// for such a pair may measure, which takes a millisecond or two; later calls cost a nanosecond. The kernel
/// is the "default" if the process has already spent 35 ms and a hundredth of its processor time on
/// measuring, or if no thread to measure on can be created: see set_calibration_budget().
///
/// Errors: c10::ValueError of MANTISSA_KERNELS or MANTISSA_MAX_ISA, at the first call.
Kernel kernel_for(KernelFamily family, kernels::Element element);

/// As kernel_for(), for an operator of Mantissa's own, which the switch of overrides.h does not reach: with
/// MANTISSA_CPU_KERNELS=0 the kernel is libtorch's.
Kernel kernel_for_own_operator(KernelFamily family, kernels::Element element);

/// The functions of choice.h, applied to the choices of this copy of the library. The functions of choice.h
/// call the copy whose kernels are registered.
namespace choice {
/// Splits pins or choices at the commas; "" has no entries.
std::vector<std::string> entries_of(const std::string& text);
void pin(const std::string& pins);
std::vector<std::string> resume(const std::string& choices);
std::string all();
std::vector<KernelChoice> rows();
}  // namespace choice

/// For tests: forgets all pins and choices, as in a new process. The environment and the cache are read
/// again.
void forget_cpu_kernel_choices();

/// For tests: sets the processor time in seconds that measuring may still take in this process. When it is
/// spent, a family takes the kernel measured for the nearest similar family, or the one that the CPU's flags
/// suggest, and a later process measures it.
void set_calibration_budget(double seconds);

/// While an instance lives, kernel_for() returns `kernel` on this thread for `family` and for families of the
/// same kind (products, convolutions, ...), and measures nothing for other families. Instances cannot be
/// nested.
class ForcedKernel {
 public:
  ForcedKernel(KernelFamily family, Kernel kernel);
  ~ForcedKernel();
  ForcedKernel(const ForcedKernel&) = delete;
  ForcedKernel& operator=(const ForcedKernel&) = delete;

  KernelFamily family;
  Kernel kernel;
};

/// Returns our build that computes `family` in `element`, or nullptr if libtorch's kernel was chosen.
template <typename Build>
const Build* chosen_build(const std::vector<Build>& builds, KernelFamily family, kernels::Element element) {
  const Kernel kernel = kernel_for(family, element);
  return kernel.tier ? &kernels::cpu::build_for(builds, features_of(*kernel.tier)) : nullptr;
}

/// Like chosen_build(), for operations that our kernels compute in any case: if libtorch's kernel was chosen,
/// returns the best build that this CPU runs.
template <typename Build>
const Build& own_build(const std::vector<Build>& builds, KernelFamily family, kernels::Element element) {
  const Kernel kernel = kernel_for(family, element);
  return kernels::cpu::build_for(builds, kernel.tier ? features_of(*kernel.tier) : cpu_features());
}

}  // namespace mantissa
