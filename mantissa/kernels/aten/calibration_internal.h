#pragma once

#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"

namespace mantissa {

/// The kernels between which there is a choice for `family` in `dtype`, the one that is preferred first.
struct Contest {
  KernelFamily family;
  at::ScalarType dtype;
  std::vector<Kernel> kernels;
};

/// Times the kernels of each contest, of which the last is libtorch's, in its order: our tiers on a small
/// call, the best of them and libtorch's on a typical one. Where the small call shows that libtorch's takes
/// more than twice as long as in float32, that is all. Times are of one call, those of lesser tiers
/// extrapolated; one that the CPU cannot compute takes infinitely long.
///
/// `budget` is the seconds that this may take; what it took is subtracted. A contest is skipped, and its
/// timings stay empty, if the budget is spent before it begins or if its calls cannot be made.
///
/// Threads: one of its own with one OpenMP thread, in processor time, so that neither the calling thread's
///          autocast and gradient mode nor a busy machine matter. No random numbers are drawn.
/// Errors:  std::system_error if no thread can be made.
std::vector<std::vector<KernelTiming>> time_kernels(const std::vector<Contest>& contests, double& budget);

/// The time of a typical call with `kernel` over the same in float32, by libtorch.
double over_float32(KernelFamily family, at::ScalarType dtype, Kernel kernel);

/// The first of `timings`, unless another one is at least this much faster: so that the choice between equals
/// is not left to chance.
constexpr double kClearlyFaster = 0.95;
size_t fastest(const std::vector<KernelTiming>& timings);

std::string kernel_name(Kernel kernel);

}  // namespace mantissa
