#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/choice.h"
#include "mantissa/kernels/cpu/gemm.h"

namespace mantissa {

/// Operations whose times stand and fall together: for all of a family, in one dtype, one kernel is chosen.
enum class KernelFamily : uint8_t {
  kProduct,         ///< of matrices, from 96^3 multiplications on
  kSmallProduct,    ///< of matrices, below
  kFewRows,         ///< up to three rows or columns
  kBatchedProduct,  ///< a batch of matrices, from 96^3 multiplications on
  kDot,             ///< of two vectors
  kConvolution,  ///< from 2^25 multiplications on, 2^23 with channels last; the first of a pass for each kind
  kConvolutionByInput,
  kConvolutionByWeight,
  kSmallConvolution,  ///< below
  kSmallConvolutionByInput,
  kSmallConvolutionByWeight,
  kGroupedConvolution,  ///< groups of several channels
  kGroupedConvolutionByInput,
  kGroupedConvolutionByWeight,
  kGroupedConvolutionLast,  ///< with channels last
  kGroupedConvolutionLastByInput,
  kGroupedConvolutionLastByWeight,
  kDepthwise,  ///< groups of one channel
  kDepthwiseByInput,
  kDepthwiseByWeight,
  kStridedDepthwise,
  kStridedDepthwiseByInput,
  kStridedDepthwiseByWeight,
  kDepthwiseLast,  ///< with channels last, below 2^22 multiplications
  kDepthwiseLastByInput,
  kDepthwiseLastByWeight,
  kLargeDepthwiseLast,  ///< from 2^22 on, with a step of 1
  kLargeDepthwiseLastByInput,
  kLargeDepthwiseLastByWeight,
  kStridedDepthwiseLast,
  kStridedDepthwiseLastByInput,
  kStridedDepthwiseLastByWeight,
  kAttention,
  kAttentionBackward,
  kGelu,
  kGeluBackward,
  kUnscale
};
constexpr int kKernelFamilies = static_cast<int>(KernelFamily::kUnscale) + 1;

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
Kernel kernel_for(KernelFamily family, cpu::Element element);

KernelFamily family_of(const cpu::Gemm& g, bool is_dot = false);

enum class ConvolutionPass : uint8_t { kForward, kByInput, kByWeight };

/// What a convolution's time depends on, beside its dtype.
struct ConvolutionKind {
  int64_t groups = 1, channels = 1, outputs = 1;  ///< of each group
  int64_t products = 0;                           ///< multiplications of the whole
  bool strided = false;                           ///< along any axis
  bool channels_last = false;
};
KernelFamily family_of(ConvolutionPass pass, const ConvolutionKind& kind);

/// What the functions of choice.h do, on this copy's choices. They themselves ask the copy whose kernels are
/// registered.
namespace choice {
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

/// The best of `builds`, which are sorted, that `tier` allows; the last runs on any CPU.
template <typename Build>
const Build& build_for(const std::vector<Build>& builds, CpuTier tier) {
  for (const Build& build : builds)
    if (build.tier <= tier) return build;
  return builds.back();
}

/// The build for `family` in `element`; where libtorch's kernel was chosen, the best that this CPU runs.
template <typename Build>
const Build& chosen_build(const std::vector<Build>& builds, KernelFamily family, cpu::Element element) {
  return build_for(builds, kernel_for(family, element).tier.value_or(cpu_tier()));
}

}  // namespace mantissa
