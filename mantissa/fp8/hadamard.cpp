#include "mantissa/fp8/hadamard.h"

#include "mantissa/fp8/input_internal.h"
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

/// Calls block(values) for each 16 values of a float32 copy, and returns it.
template <class Block>
at::Tensor transformed(const at::Tensor& x, const char* name, const Block& block) {
  const fp8::Rows rows = fp8::rows_of(x, name);
  fp8::check_blocks(rows, 1, kHadamardSize, name);
  at::Tensor out = rows.tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  float* const values = out.mutable_data_ptr<float>();
  fp8::for_each_part(out.numel() / kHadamardSize, kHadamardSize, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) block(values + i * kHadamardSize);
  });
  return out;
}

}  // namespace

at::Tensor hadamard_transform(const at::Tensor& x) {
  return transformed(x, "hadamard_transform", [](float* values) {
    for (int64_t i = 0; i < kHadamardSize; ++i) values[i] *= kHadamardSigns[i];
    multiply_by_h(values);
    for (int64_t i = 0; i < kHadamardSize; ++i) values[i] *= 0.25F;
  });
}

at::Tensor inverse_hadamard_transform(const at::Tensor& x) {
  return transformed(x, "inverse_hadamard_transform", [](float* values) {
    multiply_by_h(values);
    for (int64_t i = 0; i < kHadamardSize; ++i) values[i] *= 0.25F * kHadamardSigns[i];
  });
}

}  // namespace mantissa
