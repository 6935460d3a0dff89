#include "mantissa/trace/replay_point.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/device.h"

namespace mantissa::replay_point_test {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));
  at::Tensor forward(const at::Tensor& x) { return dropout(norm(in(x))); }
};

void expect_equal_runs(at::Device device) {
  torch::manual_seed(1);
  Net net;
  net.to(device);
  const at::Tensor x = torch::randn({16, 4}, device);
  const ReplayPoint point(net);
  const at::Tensor first = net.forward(x), mean = net.norm->running_mean.clone();
  EXPECT_FALSE(net.forward(x).equal(first));  // each forward pass draws new dropout masks
  EXPECT_FALSE(net.norm->running_mean.equal(mean));
  for (int again = 0; again < 2; ++again) {
    point.restore();
    EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 0);
    EXPECT_TRUE(net.norm->running_mean.equal(torch::zeros({8}, device)));
    EXPECT_TRUE(net.forward(x).equal(first));
    EXPECT_TRUE(net.norm->running_mean.equal(mean));
    EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 1);
  }
}

TEST(ReplayPoint, ASecondRunSeesTheSameDropoutAndStatistics) { expect_equal_runs(at::kCPU); }

TEST(ReplayPoint, ASecondRunSeesTheSameDropoutAndStatisticsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  expect_equal_runs(at::Device(at::kCUDA, 0));
}

TEST(ReplayPoint, TakesAModuleWithNeitherParametersNorBuffers) {
  torch::nn::Module empty;
  const ReplayPoint point(empty);
  const at::Tensor drawn = torch::rand({4});
  point.restore();
  EXPECT_TRUE(torch::rand({4}).equal(drawn));
}

}  // namespace
}  // namespace mantissa::replay_point_test
