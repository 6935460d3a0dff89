#pragma once

#include <cstdint>
#include <variant>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Statistics of a tensor's values, for lists of files and reports.
///
/// A complex tensor counts as its real and imaginary parts, two values per element; true is 1, false 0.
/// Numerics: counts, min and max are exact; mean and std are accumulated in float64 (for float64 tensors in
///           long double, so that they do not overflow), with the same result on any number of threads.
struct ValueSummary {
  /// A double for a floating-point dtype, else the whole number itself, because float64 is exact only up to
  /// 2^53.
  using Number = std::variant<double, int64_t, uint64_t>;

  int64_t values = 0;
  int64_t nans = 0;
  int64_t infs = 0;
  int64_t zeros = 0;
  /// Not 0, and smaller than the smallest normal number of the tensor's own dtype.
  int64_t denormals = 0;

  /// Of the finite values; meaningless if finite() is 0.
  Number min, max;
  long double mean = 0;
  /// The sum of the squared differences of the finite values from their mean.
  long double deviations = 0;

  int64_t finite() const { return values - nans - infs; }
  /// Returns sqrt(deviations / finite()), which is 0 for one value.
  double std() const;
  /// Adds the values of `other`, which must have the same dtype.
  void add(const ValueSummary& other);
};

/// Computes the statistics of a tensor.
/// Memory:  some MiB for each thread, whatever the tensor's size; a copy of a tensor that is not contiguous
///          or not on the CPU.
/// Errors:  c10::NotImplementedError for a dtype that libtorch cannot convert (quantized types).
ValueSummary summarize_values(const at::Tensor& tensor);

/// The effect of a cast to another floating-point dtype on the values. NaN is not counted: it stays NaN.
struct CastLoss {
  int64_t values = 0;
  /// Values too large for the dtype: after the cast they are inf or nan or, if a cast saturates, its largest
  /// number. An inf that the dtype cannot hold (e4m3 has none) counts too.
  int64_t overflowed = 0;
  /// Values too small for the dtype: not 0 before the cast, 0 after it.
  int64_t flushed = 0;
  /// The largest |after - before| / |before| of the other values.
  double max_relative_error = 0;

  void add(const CastLoss& other);
};

/// Compares a tensor with its cast.
/// Shapes:  any, the same in both. Memory: that of summarize_values().
/// Errors:  c10::ValueError for different shapes or dtypes that are not floating-point.
CastLoss cast_loss(const at::Tensor& before, const at::Tensor& after);

}  // namespace mantissa
