#include "mantissa/fp8/hadamard.h"

#include <algorithm>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/tiles_internal.h"

namespace mantissa {
namespace {

constexpr int64_t kHadamardSize = 16;
constexpr float kHadamardSigns[kHadamardSize] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};

/// Multiplies 16 values by H in place, which is symmetric.
void multiply_by_h(float* values) {
  for (int64_t half = 1; half < kHadamardSize; half *= 2)
    for (int64_t begin = 0; begin < kHadamardSize; begin += 2 * half)
      for (int64_t i = begin; i < begin + half; ++i) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b;
        values[i + half] = a - b;
      }
}

/// So many columns are transformed at a time.
constexpr int64_t kColumns = 64;

/// Transforms 16 values of each of `count` columns in place, in the order of multiply_by_h().
void transform_columns(float* values, int64_t stride, int64_t count) {
  float rows[kHadamardSize][kColumns] = {};
  for (int64_t row = 0; row < kHadamardSize; ++row)
    for (int64_t i = 0; i < count; ++i) rows[row][i] = values[row * stride + i] * kHadamardSigns[row];
  for (int64_t half = 1; half < kHadamardSize; half *= 2)
    for (int64_t row = 0; row < kHadamardSize; ++row) {
      if ((row & half) != 0) continue;
      for (int64_t i = 0; i < kColumns; ++i) {
        const float a = rows[row][i], b = rows[row + half][i];
        rows[row][i] = a + b;
        rows[row + half][i] = a - b;
      }
    }
  for (int64_t row = 0; row < kHadamardSize; ++row)
    for (int64_t i = 0; i < count; ++i) values[row * stride + i] = rows[row][i] * 0.25F;
}

/// Calls block(values) for each 16 values of a float32 copy, and returns it. On other devices, by_operators() does the same.
template <class ByOperators, class Block>
at::Tensor transformed(const at::Tensor& x, const char* name, const ByOperators& by_operators,
                       const Block& block) {
  const fp8::Rows rows = fp8::rows_of(x, name);
  fp8::check_blocks(rows, 1, kHadamardSize, name);
  if (!fp8::uses_cpu_kernels(x))
    return by_operators(rows, at::ArrayRef<float>(kHadamardSigns, kHadamardSize));
  at::Tensor out = rows.tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  float* const values = out.mutable_data_ptr<float>();
  fp8::for_each_part(out.numel() / kHadamardSize, kHadamardSize, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) block(values + i * kHadamardSize);
  });
  return out;
}

}  // namespace

at::Tensor hadamard_transform(const at::Tensor& x) {
  return transformed(x, "hadamard_transform", fp8::operators::hadamard, [](float* values) {
    for (int64_t i = 0; i < kHadamardSize; ++i) values[i] *= kHadamardSigns[i];
    multiply_by_h(values);
    for (int64_t i = 0; i < kHadamardSize; ++i) values[i] *= 0.25F;
  });
}

at::Tensor hadamard_transform_columns(const at::Tensor& x) {
  const fp8::Rows rows = fp8::rows_of(x, "hadamard_transform_columns");
  fp8::check_blocks(rows, kHadamardSize, 1, "hadamard_transform_columns");
  if (!fp8::uses_cpu_kernels(x))
    return fp8::operators::hadamard_columns(rows, at::ArrayRef<float>(kHadamardSigns, kHadamardSize));
  at::Tensor out = rows.tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  float* const values = out.mutable_data_ptr<float>();
  fp8::for_each_band(rows.rows, rows.cols, {kHadamardSize, 1}, [&](const fp8::Band& band, float*) {
    for (int64_t col = band.col; col < band.col + band.cols; col += kColumns)
      transform_columns(values + band.row * rows.cols + col, rows.cols,
                        std::min(kColumns, band.col + band.cols - col));
  });
  return out;
}

at::Tensor inverse_hadamard_transform(const at::Tensor& x) {
  return transformed(x, "inverse_hadamard_transform", fp8::operators::inverse_hadamard, [](float* values) {
    multiply_by_h(values);
    for (int64_t i = 0; i < kHadamardSize; ++i) values[i] *= 0.25F * kHadamardSigns[i];
  });
}

}  // namespace mantissa
