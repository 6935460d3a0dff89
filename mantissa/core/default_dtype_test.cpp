#include "mantissa/core/default_dtype.h"

#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include <torch/torch.h>

namespace mantissa::default_dtype_test {
namespace {

TEST(DefaultDtypeGuard, IN03_RestoresWhenTheBodyThrows) {
  const auto before = torch::get_default_dtype();
  try {
    DefaultDtypeGuard guard(at::kBFloat16);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kBFloat16);
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(torch::get_default_dtype(), before);
}

TEST(DefaultDtypeGuard, NestsAndCapturesOnEntry) {
  DefaultDtypeGuard outer(at::kDouble);
  {
    DefaultDtypeGuard inner(at::kHalf);
    EXPECT_EQ(torch::nn::Linear(2, 2)->weight.scalar_type(), at::kHalf);
  }
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kDouble);
}

TEST(DefaultDtypeGuard, RefusesIntegersAndChangesNothing) {
  const auto before = torch::get_default_dtype();
  EXPECT_THROW(DefaultDtypeGuard guard(at::kInt), c10::ValueError);
  EXPECT_EQ(torch::get_default_dtype(), before);
}

TEST(DefaultDtypeGuard, IN04_OtherThreadsSeeIt) {
  const DefaultDtypeGuard guard(at::kDouble);
  at::ScalarType seen{};
  std::thread([&] { seen = torch::ones(1).scalar_type(); }).join();
  EXPECT_EQ(seen, at::kDouble);
}

TEST(DefaultDtypeGuard, IN05_LiteralsFactoriesAndLayersFollow) {
  const DefaultDtypeGuard guard(at::kBFloat16);
  EXPECT_EQ(torch::tensor({0.5}).scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::tensor({1}).scalar_type(), at::kLong);
  EXPECT_EQ(torch::nn::Linear(1, 1)->weight.scalar_type(), at::kBFloat16);
  const torch::nn::BatchNorm1d norm(1);
  EXPECT_EQ(norm->running_mean.scalar_type(), at::kBFloat16);
  EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
}

TEST(DefaultDtypeGuard, IN02_ExplicitDtypesWin) {
  DefaultDtypeGuard guard(at::kHalf);
  EXPECT_EQ(torch::ones(1, at::kFloat).scalar_type(), at::kFloat);
  EXPECT_EQ(torch::nn::BatchNorm1d(2)->num_batches_tracked.scalar_type(), at::kLong);
}

}  // namespace
}  // namespace mantissa::default_dtype_test
