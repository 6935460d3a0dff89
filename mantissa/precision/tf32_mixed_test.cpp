#include "mantissa/precision/tf32_mixed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/amp/matmul_precision.h"
#include "mantissa/core/device.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/registry.h"

namespace mantissa::tf32_mixed_test {
namespace {

TEST(Tf32Mixed, SetsProductsAndConvolutionsForARunAndPutsThemBack) {
  const Tf32ConvolutionsGuard off(false);
  const Tf32Mixed mode;
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  {
    const Scope run = mode.run_context();
    EXPECT_EQ(get_float32_matmul_precision(), "high");
    EXPECT_TRUE(tf32_convolutions());
  }
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  EXPECT_FALSE(tf32_convolutions());
}

TEST(Tf32Mixed, TakesMediumAndRefusesHighest) {
  EXPECT_THAT(
      error_of([] { make_precision("tf32-mixed", at::kCPU, {.float32_matmul_precision = "highest"}); }),
      testing::HasSubstr("choose 32-true"));
  const auto mode = make_precision("tf32-mixed", at::kCPU, {.float32_matmul_precision = "medium"});
  const Scope run = mode->run_context();
  EXPECT_EQ(get_float32_matmul_precision(), "medium");
}

TEST(Tf32Mixed, OnTheCpuProductsAreFloat32s) {
  const at::Tensor a = torch::rand({64, 64}), wanted = a.mm(a);
  const auto mode = make_precision("tf32-mixed", at::kCPU);
  const Scope run = mode->run_context();
  EXPECT_TRUE(a.mm(a).equal(wanted));
}

TEST(Tf32Mixed, OnCudaProductsAreCoarserAndStayFloat32) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto mode = make_precision("tf32-mixed", at::kCUDA);
  if (mode_support(find_mode("tf32-mixed"), at::kCUDA).support != FormatSupport::kNative)
    GTEST_SKIP() << "no TF32 on this GPU";
  const at::Tensor a = torch::rand({256, 256}, at::kCUDA), exact = a.to(at::kDouble).mm(a.to(at::kDouble));
  const auto error = [&] { return (a.mm(a) - exact).abs().max().item<double>(); };
  const double in_float32 = error();
  const Scope run = mode->run_context();
  EXPECT_EQ(a.mm(a).scalar_type(), at::kFloat);
  EXPECT_GT(error(), 4 * in_float32);
}

}  // namespace
}  // namespace mantissa::tf32_mixed_test
