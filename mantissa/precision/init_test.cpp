#include "mantissa/precision/init.h"

#include <gtest/gtest.h>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

TEST(InitModule, IN11_MakesTheModuleInItsDtype) {
  for (const Mode& mode : modes()) {
    const auto precision = make_precision(mode.name, at::kCPU);
    const auto net = init_module(*precision, at::kCPU, [] { return torch::nn::BatchNorm1d(2); });
    const bool keeps_float32 = mode.name == "32-true" || mode.name == "O1" || mode.name.ends_with("-mixed");
    EXPECT_EQ(net->weight.scalar_type(), keeps_float32 ? at::kFloat : mode.compute_dtype) << mode.name;
    EXPECT_EQ(net->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat) << mode.name;
  }
}

TEST(InitModule, RestoresTheDefaultDtypeWhenTheModulesConstructorThrows) {
  const auto precision = make_precision("bf16-true", at::kCPU);
  const auto failing = []() -> torch::nn::Linear { throw std::runtime_error("no such layer"); };
  EXPECT_THROW(init_module(*precision, at::kCPU, failing), std::runtime_error);
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
}

TEST(InitModule, IN12_PlacesItOnTheDevice) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto precision = make_precision("bf16-true", at::kCUDA);
  const auto net = init_module(*precision, at::Device(at::kCUDA, 0), [] { return torch::nn::Linear(2, 2); });
  EXPECT_TRUE(net->weight.is_cuda());
  EXPECT_EQ(net->weight.scalar_type(), at::kBFloat16);
}

TEST(TensorInit, IN02_ExplicitDtypesWinAndScopesEnd) {
  const auto precision = make_precision("64-true", at::kCPU);
  {
    const TensorInit scope(*precision);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kDouble);
    EXPECT_EQ(torch::ones(1, at::kHalf).scalar_type(), at::kHalf);
    const ModuleInit inner(*make_precision("16-true", at::kCPU));
    EXPECT_EQ(torch::nn::Linear(2, 2)->weight.scalar_type(), at::kHalf);
  }
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace mantissa
