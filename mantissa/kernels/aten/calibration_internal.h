#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"

namespace mantissa {

/// The kernels to choose from for `family` in `dtype`, the preferred one first.
struct Contest {
  KernelFamily family;
  at::ScalarType dtype;
  std::vector<Kernel> kernels;
};

/// Seconds of a small call, in 16 bits unless its name says otherwise.
struct SmallCalls {
  double ours, libtorch, libtorch_float32;
  std::function<double()> libtorch_four_times;  ///< measures a call of four times the work
};

/// False if the small calls show that libtorch has no 16-bit products for this CPU: its kernel may then take a hundred times
/// as long as ours, which is no time to spend on a typical call. What oneDNN takes to start, 30 to 200 us, does not count:
/// four times the work takes as long there, and with AMX its large products are the fastest. More than 300 us over ours is
/// taken for a slow kernel and not for a start, because four times of it could take too long.
bool can_win_typical_call(const SmallCalls& small);

/// Times the kernels of each contest in its order; the last kernel is libtorch's. Our tiers are timed on a
/// small call; the best of them and libtorch's kernel are then timed on a typical call, if libtorch's can win there. Each
/// time is for one call; the times of the slower tiers are extrapolated. The time of a kernel that this CPU
/// cannot run is infinite.
///
/// `budget` is the time in seconds that this may take; the time taken is subtracted from it. A contest is
/// skipped, and its timings stay empty, if the budget is spent before it begins or if its calls cannot be
/// made.
///
/// Threads: measures on a thread of its own with one OpenMP thread, in processor time. Neither the calling
///          thread's autocast and gradient mode nor a busy machine affects the result. No random numbers are
///          drawn.
/// Errors:  std::system_error if no thread can be created.
std::vector<std::vector<KernelTiming>> time_kernels(const std::vector<Contest>& contests, double& budget);

/// Returns the time of a typical call with `kernel`, divided by that of the same call in float32 with libtorch's kernel:
/// see KernelChoice.
double over_float32(KernelFamily family, at::ScalarType dtype, Kernel kernel);

/// Returns the index of the first timing, unless another one is faster by at least this factor. Chance
/// therefore does not decide between kernels of equal speed.
constexpr double kClearlyFaster = 0.95;
size_t fastest(const std::vector<KernelTiming>& timings);

std::string kernel_name(Kernel kernel);

}  // namespace mantissa
