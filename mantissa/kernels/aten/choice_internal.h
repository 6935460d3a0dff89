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

/// A kernel: of one of our tiers, or libtorch's.
struct Kernel {
  std::optional<CpuTier> tier;  ///< none: libtorch's
  bool operator==(const Kernel&) const = default;
};
constexpr Kernel kLibtorchs{};

/// The kernel for `family` in `element`: pinned, or the fastest on this CPU. The first call for a pair of
/// them may measure, which takes a millisecond or two; later ones cost a nanosecond. When a process has spent
/// 35 ms and a hundredth of its processor time so, or no thread can be made to measure on, the kernel is the
/// "default": see set_calibration_budget().
///
/// Errors: c10::ValueError of MANTISSA_KERNELS or MANTISSA_MAX_ISA, at the first call.
Kernel kernel_for(KernelFamily family, kernels::Element element);

/// What the functions of choice.h do, on this copy's choices. The functions themselves ask the copy whose kernels are
/// registered.
namespace choice {
/// What stands between the commas of pins or choices; nothing for "".
std::vector<std::string> entries_of(const std::string& text);
void pin(const std::string& pins);
std::vector<std::string> resume(const std::string& choices);
std::string all();
std::vector<KernelChoice> rows();
}  // namespace choice

/// For tests: nothing is pinned or decided, as in a new process, which would read the environment and the
/// cache anew.
void forget_cpu_kernel_choices();

/// For tests: the processor time in seconds that measuring may still take in this process. What does not fit
/// is chosen by what was measured for the nearest family that is alike, or by the CPU's flags, and is
/// measured by a later process.
void set_calibration_budget(double seconds);

/// While one lives, kernel_for() is `kernel` on this thread for `family` and its like (products,
/// convolutions, ...), and nothing is measured for others. Not nested.
class ForcedKernel {
 public:
  ForcedKernel(KernelFamily family, Kernel kernel);
  ~ForcedKernel();
  ForcedKernel(const ForcedKernel&) = delete;
  ForcedKernel& operator=(const ForcedKernel&) = delete;

  KernelFamily family;
  Kernel kernel;
};

/// The build of ours that computes `family` in `element`; nullptr where libtorch's kernel was chosen.
template <typename Build>
const Build* chosen_build(const std::vector<Build>& builds, KernelFamily family, kernels::Element element) {
  const Kernel kernel = kernel_for(family, element);
  return kernel.tier ? &kernels::cpu::build_for(builds, features_of(*kernel.tier)) : nullptr;
}

/// The same for what ours computes in any case: where libtorch's kernel was chosen, the best build that this CPU runs.
template <typename Build>
const Build& own_build(const std::vector<Build>& builds, KernelFamily family, kernels::Element element) {
  const Kernel kernel = kernel_for(family, element);
  return kernels::cpu::build_for(builds, kernel.tier ? features_of(*kernel.tier) : cpu_features());
}

}  // namespace mantissa
