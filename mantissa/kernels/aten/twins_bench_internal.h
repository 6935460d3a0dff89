#pragma once

// What the benchmarks of 16-bit kernels share: the kernel against its twin in float32 and, in its own type,
// against libtorch's.

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa {

using Run = std::function<at::Tensor()>;

/// An operation in float32 and the same in 16 bits.
struct Twins {
  Run wide, narrow;
  bool agree = true;       ///< whether the results do: if not, nothing is timed
  double products = 0;     ///< multiplications of one run, for `fp32_gflops`
  std::string kernel;      ///< the one that was chosen for the 16-bit operation, for the label
  bool with_stock = true;  ///< whether libtorch's own 16-bit kernel ends in bearable time
};

/// Registers a benchmark that calls `make` and times what it returns, in turn, A B A B ..., so that the
/// machine's drift hits both alike, and with them libtorch's own 16-bit kernel, which has three rounds where
/// it takes more than twice as long. Reports medians of the ratios of `rounds` rounds:
///
///   fp32, fp32_p10, fp32_p90    wall time over float32's, and its tenth and ninetieth percentile
///   fp32_cpu                    processor time over float32's: steadier on one thread of a shared machine;
///   with
///                               several, threads that wait count too
///   stock                       wall time of libtorch's 16-bit kernel over float32's
///   over_stock                  wall time over that of libtorch's 16-bit kernel
///
/// The benchmark `all`, after them, has the median and the worst of all and the worst ones' names.
void register_twins(const std::string& name, const std::function<Twins()>& make, int rounds = 21);

}  // namespace mantissa
