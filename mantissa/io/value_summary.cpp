#include "mantissa/io/value_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include "mantissa/core/formats.h"
#include "mantissa/core/parallel_internal.h"

namespace mantissa {
namespace {

/// The number of values that are converted to one plain type at a time: they stay in the cache.
constexpr int64_t kBlock = 1 << 15;

double smallest_normal(at::ScalarType dtype) {
  if (dtype == at::kFloat8_e8m0fnu) return 0;  // powers of two, all of them normal
  return info(format_of(dtype).value_or(Format::kFloat32)).smallest_normal;
}

/// `Wide` is the type of the sums.
template <typename Wide, typename Value>
ValueSummary summarize(const Value* values, int64_t n, double normal) {
  ValueSummary s;
  s.values = n;
  Value low = std::numeric_limits<Value>::max(), high = std::numeric_limits<Value>::lowest();
  Wide sum = 0;
  const auto is_finite = [](Value value) {
    if constexpr (std::is_floating_point_v<Value>)
      return std::abs(value) <= std::numeric_limits<Value>::max();
    return true;
  };
  for (int64_t i = 0; i < n; ++i) {
    const Value value = values[i];
    if constexpr (std::is_floating_point_v<Value>) {
      s.nans += std::isnan(value);
      s.infs += std::isinf(value);
      s.denormals += value != 0 && std::abs(value) < normal;
    }
    s.zeros += value == 0;
    if (!is_finite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
    sum += static_cast<Wide>(value);
  }
  if (s.finite() == 0) return s;
  const Wide mean = sum / static_cast<Wide>(s.finite());
  Wide deviations = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Wide from_mean = is_finite(values[i]) ? static_cast<Wide>(values[i]) - mean : 0;
    deviations += from_mean * from_mean;
  }
  s.min = low;
  s.max = high;
  s.mean = mean;
  s.deviations = deviations;
  return s;
}

ValueSummary summarize_block(const at::Tensor& block, at::ScalarType dtype) {
  const int64_t n = block.numel();
  if (dtype == at::kUInt64) return summarize<double>(block.const_data_ptr<uint64_t>(), n, 0);
  if (c10::isIntegralType(dtype, /*includeBool=*/true))
    return summarize<double>(block.to(at::kLong).const_data_ptr<int64_t>(), n, 0);
  const at::Tensor wide = block.to(at::kDouble);
  const double *values = wide.const_data_ptr<double>(), normal = smallest_normal(dtype);
  return dtype == at::kDouble ? summarize<long double>(values, n, normal)
                              : summarize<double>(values, n, normal);
}

/// Returns all values of `tensor` in one row.
at::Tensor flat(const at::Tensor& tensor) {
  const at::Tensor cpu = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  return (cpu.is_complex() ? at::view_as_real(cpu) : cpu).view({-1});
}

/// Adds up the results of `part` for each block, always in the same order.
template <typename Result, typename Part>
Result add_up(int64_t values, const Part& part) {
  const int64_t blocks = (values + kBlock - 1) / kBlock;
  std::vector<Result> parts(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b)
      parts[static_cast<size_t>(b)] = part(b * kBlock, std::min(kBlock, values - b * kBlock));
  });
  Result all;
  for (const Result& one : parts) all.add(one);
  return all;
}

}  // namespace

double ValueSummary::std() const {
  return finite() == 0 ? 0 : static_cast<double>(std::sqrt(deviations / static_cast<long double>(finite())));
}

void ValueSummary::add(const ValueSummary& other) {
  const auto mine = static_cast<long double>(finite()), theirs = static_cast<long double>(other.finite());
  if (other.finite() > 0) {
    // Chan, Golub and LeVeque 1979: the deviations of two samples from their common mean.
    const long double apart = other.mean - mean, all = mine + theirs;
    mean = finite() == 0 ? other.mean : mean + apart * (theirs / all);
    deviations += other.deviations + (finite() == 0 ? 0 : apart * apart * (mine / all) * theirs);
    min = finite() == 0 ? other.min : std::min(min, other.min);
    max = finite() == 0 ? other.max : std::max(max, other.max);
  }
  values += other.values;
  nans += other.nans;
  infs += other.infs;
  zeros += other.zeros;
  denormals += other.denormals;
}

ValueSummary summarize_values(const at::Tensor& tensor) {
  const at::Tensor row = flat(tensor);
  const at::ScalarType dtype = row.scalar_type();
  return add_up<ValueSummary>(
      row.numel(), [&](int64_t begin, int64_t n) { return summarize_block(row.narrow(0, begin, n), dtype); });
}

void CastLoss::add(const CastLoss& other) {
  values += other.values;
  overflowed += other.overflowed;
  flushed += other.flushed;
  max_relative_error = std::max(max_relative_error, other.max_relative_error);
}

CastLoss cast_loss(const at::Tensor& before, const at::Tensor& after) {
  TORCH_CHECK_VALUE(before.sizes() == after.sizes(), "cast_loss: shapes ", before.sizes(), " and ",
                    after.sizes(), " differ; give a tensor and its own cast");
  TORCH_CHECK_VALUE(before.is_floating_point() && after.is_floating_point(), "cast_loss: dtypes ",
                    before.scalar_type(), " and ", after.scalar_type(),
                    " are not both floating-point; other casts have no relative error");
  const at::Tensor from = flat(before), to = flat(after);
  // e4m3 has no inf. A value beyond the midpoint between its largest number, 448, and the next one, 480,
  // becomes NaN in libtorch 2.11 and 448 in later releases.
  const double most = to.scalar_type() == at::kFloat8_e4m3fn ? 464 : std::numeric_limits<double>::infinity();
  return add_up<CastLoss>(from.numel(), [&](int64_t begin, int64_t n) {
    const at::Tensor old_block = from.narrow(0, begin, n).to(at::kDouble),
                     new_block = to.narrow(0, begin, n).to(at::kDouble);
    const double *x = old_block.const_data_ptr<double>(), *y = new_block.const_data_ptr<double>();
    CastLoss loss;
    loss.values = n;
    for (int64_t i = 0; i < n; ++i) {
      if (std::isinf(x[i])) loss.overflowed += y[i] != x[i];
      if (x[i] == 0 || !std::isfinite(x[i])) continue;
      const bool overflowed = !std::isfinite(y[i]) || std::abs(x[i]) > most, flushed = y[i] == 0;
      loss.overflowed += overflowed;
      loss.flushed += flushed;
      if (!overflowed && !flushed)
        loss.max_relative_error = std::max(loss.max_relative_error, std::abs((y[i] - x[i]) / x[i]));
    }
    return loss;
  });
}

}  // namespace mantissa
