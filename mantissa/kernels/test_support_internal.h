#pragma once

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::test {

/// Expects every element of `got` to be as near to the exact result as kernels::Gemm promises. Adding `k`
/// products in float32 has an error of at most (k + 2) eps32 magnitude, where `magnitude` is the exact sum of
/// the absolute values, including the addend's. The factors, addend and activation add a few roundings; one
/// more rounding gives got's dtype. `exact` and `magnitude` are float64 tensors of got's shape. Where `exact`
/// is not finite, `got` must be equal to it.
inline void expect_within_bound(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& magnitude,
                                int64_t k) {
  ASSERT_EQ(got.sizes(), exact.sizes());
  const bool is_bf16 = got.scalar_type() == at::kBFloat16, is_fp16 = got.scalar_type() == at::kHalf;
  // Half an ulp, relative for normal values and absolute below them.
  const double half_ulp = is_bf16 ? 0x1p-8 : is_fp16 ? 0x1p-11 : 0x1p-24;
  const double half_smallest = is_fp16 ? 0x1p-25 : is_bf16 ? 0x1p-134 : 0x1p-150;
  const double largest = is_fp16 ? 65504 : is_bf16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
  const double eps32 = 0x1p-24;
  const at::Tensor finite = exact.isfinite() & (exact.abs() + magnitude * 1e-3 < largest);
  const at::Tensor sum_error = (static_cast<double>(k) + 8) * eps32 * magnitude;
  const at::Tensor allowed = sum_error + (exact.abs() + sum_error) * half_ulp * (1 + 0x1p-7) + half_smallest;
  const at::Tensor error = (got.to(at::kDouble) - exact).abs();
  // Not `error > allowed`, because a NaN must count as wrong.
  const at::Tensor wrong = finite & ~(error <= allowed);
  EXPECT_FALSE(wrong.any().item<bool>())
      << wrong.sum().item<int64_t>() << " of " << wrong.numel() << " out of bound, the worst by a factor of "
      << (error / allowed).masked_fill(~wrong, 0).max().item<double>();
  const at::Tensor special = exact.to(got.scalar_type()).to(at::kDouble);
  const at::Tensor not_finite = ~exact.isfinite();
  EXPECT_TRUE(at::allclose(got.to(at::kDouble).masked_fill(~not_finite, 0),
                           special.masked_fill(~not_finite, 0), 0, 0, /*equal_nan=*/true));
}

/// Counts the bytes that this thread has allocated, minus those it has freed.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0, peak = 0;
};

/// True if both hold the same numbers bit for bit; NaN equals NaN.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (!a.is_floating_point()) return at::equal(a, b);
  const at::Tensor nan = a.isnan();
  return at::equal(nan, b.isnan()) && at::equal(a.masked_fill(nan, 0), b.masked_fill(nan, 0)) &&
         at::equal(a.masked_fill(nan, 0).signbit(), b.masked_fill(nan, 0).signbit());
}

}  // namespace mantissa::test
