#pragma once

#include <cstdint>
#include <variant>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// What values a tensor holds, for lists of files and reports.
///
/// A complex tensor is taken as its real and imaginary parts, two values an element; true is 1, false 0.
/// Numerics: counts, min and max are exact; mean and std are accumulated in float64 (of float64 in long
///           double, so that they do not overflow), with the same result on any number of threads.
struct ValueSummary {
  /// The double of a floating-point dtype, else the whole number itself: float64 ends at 2^53.
  using Number = std::variant<double, int64_t, uint64_t>;

  int64_t values = 0;
  int64_t nans = 0;
  int64_t infs = 0;
  int64_t zeros = 0;
  /// Not 0, and smaller than the smallest normal number of the tensor's own dtype.
  int64_t denormals = 0;

  /// Of the finite values; of no meaning where finite() is 0.
  Number min, max;
  long double mean = 0;
  /// The sum of the squares of what the finite values differ from their mean.
  long double deviations = 0;

  int64_t finite() const { return values - nans - infs; }
  /// sqrt(deviations / finite()), so that it is 0 for one value.
  double std() const;
  /// Takes the values of `other` in, which must be of the same dtype.
  void add(const ValueSummary& other);
};

/// Memory:  some MiB for each thread, whatever the tensor's size; a copy of a tensor that is not contiguous
///          or not on the CPU.
/// Errors:  c10::NotImplementedError for a dtype that libtorch cannot convert (quantized types).
ValueSummary summarize_values(const at::Tensor& tensor);

/// What a cast to another floating-point dtype did to the values. NaN is left aside: it stays NaN.
struct CastLoss {
  int64_t values = 0;
  /// Too large for the dtype: inf or nan after, or, where a cast saturates, its largest number. An inf that
  /// the dtype cannot hold (e4m3 has none) is counted, too.
  int64_t overflowed = 0;
  /// Not 0 before, 0 after: too small for it.
  int64_t flushed = 0;
  /// The largest |after - before| / |before| of the others.
  double max_relative_error = 0;

  void add(const CastLoss& other);
};

/// Compares a tensor with its cast.
/// Shapes:  any, the same in both. Memory: that of summarize_values().
/// Errors:  c10::ValueError for different shapes or dtypes that are not floating-point.
CastLoss cast_loss(const at::Tensor& before, const at::Tensor& after);

}  // namespace mantissa
