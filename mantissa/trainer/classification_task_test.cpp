#include "mantissa/trainer/classification_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::classification_task_test {
namespace {

class EveryDevice : public testing::TestWithParam<std::string> {};

TEST_P(EveryDevice, ClassifiesInEveryMode) {
  if (GetParam() == "cuda" && cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  for (const Mode& mode : modes()) {
    if (mode.traits.frozen_weights) continue;  // a bias alone does not separate the classes
    torch::manual_seed(0);
    const at::Tensor x = torch::randn({64, 8});
    const at::Tensor y = (x.select(1, 0) > 0).to(at::kLong);
    auto net = std::make_shared<torch::nn::LinearImpl>(8, 2);
    ClassificationTask task(
        net, [&](const at::Tensor& input) { return net->forward(input); },
        [](torch::nn::Module& module) {
          return OptimizerConfig{std::make_shared<torch::optim::SGD>(module.parameters(), 0.5)};
        });
    Trainer trainer({.precision = mode.name, .device = GetParam(), .max_epochs = 40});
    ListLoader train({{x, y, {}}}), val({{x, y, {}}});
    EXPECT_GT(trainer.fit(task, train, &val).metrics.at("val_accuracy"), 0.9) << mode.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, EveryDevice, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return info.param; });

TEST(ClassificationTask, RefusesTargetsThatDoNotFit) {
  auto net = std::make_shared<torch::nn::LinearImpl>(1, 2);
  ClassificationTask task(
      net, [&](const at::Tensor& input) { return net->forward(input); },
      [](torch::nn::Module& module) {
        return OptimizerConfig{std::make_shared<torch::optim::SGD>(module.parameters(), 0.5)};
      });
  const Batch wrong{torch::ones({3, 1}), torch::zeros({2}, at::kLong), {}};
  EXPECT_THAT(error_of([&] { task.training_step(wrong, 0); }), testing::HasSubstr("do not fit targets [2]"));
}

TEST(ClassificationTask, SixteenBitLogitsAreScoredInFloat32) {
  auto net = std::make_shared<torch::nn::LinearImpl>(1, 2);
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    ClassificationTask task(
        net, [&](const at::Tensor& input) { return net->forward(input).to(dtype); },
        [](torch::nn::Module& module) {
          return OptimizerConfig{std::make_shared<torch::optim::SGD>(module.parameters(), 0.5)};
        });
    const Batch batch{torch::ones({3, 1}), torch::zeros({3}, at::kLong), {}};
    EXPECT_EQ(task.training_step(batch, 0).scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
  }
}

}  // namespace
}  // namespace mantissa::classification_task_test
