// One property over every row of the registry, so that a new mode is held to them without a new test.
#include <gtest/gtest.h>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/precision/registry.h"

namespace mantissa::all_modes_test {
namespace {

class EveryMode : public testing::TestWithParam<std::tuple<std::string, c10::DeviceType>> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  }
  static at::Device device() { return at::Device(std::get<1>(GetParam())); }
  static std::unique_ptr<Precision> precision() { return make_precision(std::get<0>(GetParam()), device()); }
};

TEST_P(EveryMode, AThrowingBodyLeavesNothingBehind) {
  const auto mode = precision();
  const at::Tensor a = torch::ones({2, 2}, device());
  for (int repeat = 0; repeat < 2; ++repeat) {
    try {
      const Scope scope = mode->forward_context();
      throw std::runtime_error("body");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
    EXPECT_EQ(a.mm(a).scalar_type(), at::kFloat);
  }
}

TEST_P(EveryMode, TrainsALineInAHandWrittenLoop) {
  torch::manual_seed(0);
  const auto mode = precision();
  torch::nn::Linear net(4, 1);
  net->to(device());
  mode->convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  const at::Tensor x = torch::randn({64, 4}, device());
  const at::Tensor y = x.sum(1, /*keepdim=*/true);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = torch::mse_loss(net(mode->convert_input(x)), mode->convert_input(y));
    }
    mode->backward(loss);
    mode->clip_gradients(optimizer, 10.0);
    mode->optimizer_step(optimizer);
    last = mode->convert_output(loss).item<double>();
    if (step == 0) first = last;
  }
  EXPECT_GT(first, 1.0);
  EXPECT_LT(last, 0.01);
}

TEST_P(EveryMode, GradientsLookTheSameInEveryMode) {
  const auto mode = precision();
  torch::nn::Linear net(2, 2);
  net->to(device());
  mode->convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  // In float32: the scale, 65536, is beyond fp16.
  mode->backward((net->weight.to(at::kFloat) * 0.1875).sum());
  mode->unscale_gradients(optimizer);
  const at::Tensor gradient = main_params(optimizer)[0].grad();
  EXPECT_TRUE(gradient.to(at::kCPU, at::kFloat).equal(torch::full({2, 2}, 0.1875F)));
}

TEST_P(EveryMode, AStepWithoutGradientsIsSkippedAlike) {
  const auto mode = precision();
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  EXPECT_EQ(mode->optimizer_step(optimizer).cause, SkipCause::kNoGradients);
  EXPECT_EQ(mode->optimizer_step(optimizer, [] { return at::Tensor(); }).cause, SkipCause::kNoGradients);
}

TEST_P(EveryMode, IntegersAndMasksKeepTheirDtype) {
  const auto mode = precision();
  for (const auto dtype : {at::kLong, at::kBool, at::kByte}) {
    const at::Tensor x = torch::ones(2, at::device(device()).dtype(dtype));
    EXPECT_TRUE(mode->convert_input(x).is_same(x));
    EXPECT_TRUE(mode->convert_output(x).is_same(x));
  }
}

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const Mode& mode : modes()) names.push_back(mode.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMode,
                         testing::Combine(testing::ValuesIn(mode_names()),
                                          testing::Values(at::kCPU, at::kCUDA)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) +
                                              (std::get<1>(info.param) == at::kCPU ? "_cpu" : "_cuda");
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace mantissa::all_modes_test
