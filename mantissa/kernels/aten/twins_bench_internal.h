#pragma once

// Shared by the benchmarks of 16-bit kernels: compares a kernel with the same operation in float32 and with
// libtorch's kernel for its own type.

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace mantissa {

using Run = std::function<at::Tensor()>;

/// An operation in float32 and the same operation in 16 bits.
struct Twins {
  Run wide, narrow;
  bool agree = true;       ///< whether the results agree; if not, nothing is timed
  double products = 0;     ///< multiplications of one run, for `fp32_gflops`
  std::string kernel;      ///< the kernel chosen for the 16-bit operation, for the label
  bool with_stock = true;  ///< whether libtorch's own 16-bit kernel ends in acceptable time
};

/// Registers a benchmark that calls `make` and times both operations in turn (A B A B ...), so that drift of
/// the machine affects them equally. libtorch's own 16-bit kernel is timed with them, in only three rounds if
/// it takes more than twice as long. Reports medians of the ratios of `rounds` rounds:
///
///   fp32, fp32_p10, fp32_p90    wall time over float32's, with its tenth and ninetieth percentile
///   fp32_cpu                    processor time over float32's: steadier on one thread of a shared machine; with
///                               several threads, waiting threads count too
///   stock                       wall time of libtorch's 16-bit kernel over float32's
///   over_stock                  wall time over that of libtorch's 16-bit kernel
///
/// The benchmark `all` runs last. It has the median and the worst of all benchmarks, and the names of the
/// worst ones.
void register_twins(const std::string& name, const std::function<Twins()>& make, int rounds = 21);

}  // namespace mantissa
