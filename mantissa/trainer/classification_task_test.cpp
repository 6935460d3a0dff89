#include "mantissa/trainer/classification_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/optim/sgd.h"
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

TEST(ClassificationTask, AHolderAndTheNameOfAnOptimizerMakeTheSameTask) {
  const at::Tensor x = torch::randn({16, 8}), y = (x.select(1, 0) > 0).to(at::kLong);
  torch::manual_seed(0);
  torch::nn::Linear named(8, 2);
  torch::manual_seed(0);
  torch::nn::Linear by_hand(8, 2);
  ClassificationTask short_task(named, "sgd", {.lr = 0.5, .momentum = 0.9});
  ClassificationTask long_task(
      by_hand.ptr(), [&](const at::Tensor& input) { return by_hand->forward(input); },
      [](torch::nn::Module& module) {
        return OptimizerConfig{std::make_shared<SGD>(module.parameters(), SGDOptions(0.5).momentum(0.9))};
      });
  for (ClassificationTask* const task : {&short_task, &long_task}) {
    ListLoader train({{x, y, {}}});
    Trainer({.precision = "32-true", .max_epochs = 3}).fit(*task, train);
  }
  EXPECT_TRUE(at::equal(named->weight, by_hand->weight));
  EXPECT_THAT(error_of([&] { ClassificationTask(named, "sdg"); }), testing::HasSubstr("did you mean 'sgd'"));
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
