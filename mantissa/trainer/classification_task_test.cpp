#include "mantissa/trainer/classification_task.h"

#include <algorithm>
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

/// A task whose logits are its input.
ClassificationTask of_logits() {
  return ClassificationTask(
      std::make_shared<torch::nn::LinearImpl>(1, 1), [](const at::Tensor& input) { return input; },
      [](torch::nn::Module& module) {
        return OptimizerConfig{std::make_shared<torch::optim::SGD>(module.parameters(), 0.5)};
      });
}

/// Returns what a task logs of a validation batch.
std::map<std::string, double> validated(ClassificationTask task, const Batch& batch) {
  ListLoader train({batch}), val({batch});
  Trainer trainer({.precision = "32-true", .device = "cpu"});
  return trainer.validate(task, val);
}

TEST(ClassificationTask, TargetsMayBeSharesOfTheClasses) {
  const at::Tensor logits = torch::randn({6, 3}), labels = torch::tensor({0, 1, 2, 2, 1, 0});
  const at::Tensor shares = torch::one_hot(labels, 3).to(at::kFloat) * 0.9 + 0.1 / 3;
  ClassificationTask task = of_logits();
  EXPECT_TRUE(task.training_step({logits, shares, {}}, 0)
                  .allclose(-(shares * logits.log_softmax(1)).sum(1).mean(), 1e-6));
  EXPECT_TRUE(task.training_step({logits.to(at::kBFloat16), shares.to(at::kDouble), {}}, 0)
                  .allclose(task.training_step({logits.to(at::kBFloat16).to(at::kFloat), shares, {}}, 0)));
  const auto soft = validated(of_logits(), {logits, shares, {}}),
             hard = validated(of_logits(), {logits, labels, {}});
  EXPECT_EQ(soft.at("val_accuracy"), hard.at("val_accuracy"));
  EXPECT_THAT(error_of([&] {
                task.training_step({logits, shares.narrow(1, 0, 2), {}}, 0);
              }),
              testing::HasSubstr("do not fit floating-point targets [6, 2]"));
}

TEST(ClassificationTask, PositionsThatAreLeftOutDoNotCount) {
  const at::Tensor logits = torch::tensor({{3.0, 0.0}, {0.0, 3.0}, {3.0, 0.0}, {3.0, 0.0}});
  const auto some = validated(of_logits(), {logits, torch::tensor({0, -100, 1, -100}), {}}),
             alone = validated(of_logits(),
                               {logits.index_select(0, torch::tensor({0, 2})), torch::tensor({0, 1}), {}});
  EXPECT_EQ(some.at("val_accuracy"), 0.5);
  EXPECT_EQ(some.at("val_loss"), alone.at("val_loss"));
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

/// A hidden layer and an output layer.
struct Chunked {
  Chunked()
      : task(
            net, [this](const at::Tensor& x) { return output(hidden(x)); },
            [](torch::nn::Module& module) {
              return OptimizerConfig{std::make_shared<torch::optim::SGD>(module.parameters(), 0.5)};
            }) {
    net->push_back(torch::nn::Linear(3, 4));
    net->push_back(torch::nn::Linear(4, 5));
  }
  at::Tensor hidden(const at::Tensor& x) { return (*net)[0]->as<torch::nn::Linear>()->forward(x); }
  at::Tensor output(const at::Tensor& x) {
    largest_output = std::max(largest_output, x.size(0));
    return (*net)[1]->as<torch::nn::Linear>()->forward(x);
  }
  std::string set_chunk(int64_t chunk, bool has_hidden = true, bool has_output = true) {
    const ClassificationTask::Forward first = [this](const at::Tensor&x) { return hidden(x); },
                                      last = [this](const at::Tensor&x) { return output(x); };
    return error_of(
        [&] { task.set_chunked_loss(has_hidden ? first : nullptr, has_output ? last : nullptr, chunk); });
  }
  std::shared_ptr<torch::nn::SequentialImpl> net = std::make_shared<torch::nn::SequentialImpl>();
  ClassificationTask task;
  int64_t largest_output = 0;  ///< the most positions in one call of output()
};

TEST(ClassificationTask, AChunkedLossIsTheLoss) {
  Chunked chunked;
  const at::Tensor x = torch::randn({7, 3}), best = chunked.output(chunked.hidden(x)).argmax(1);
  // Some predictions are right, and some are wrong.
  const Batch batch{x, at::where(at::arange(7) < 4, best, (best + 1) % 5), {}};
  ListLoader data({batch});
  Trainer trainer({.precision = "32-true", .device = "cpu"});
  const double loss = chunked.task.training_step(batch, 0).item<double>();
  const Metrics tested = trainer.test(chunked.task, data), validated = trainer.validate(chunked.task, data);
  EXPECT_NEAR(tested.at("test_accuracy"), 4 / 7.0, 1e-6);
  for (const int64_t chunk : {1, 3, 7}) {
    EXPECT_EQ(chunked.set_chunk(chunk), "no error");
    chunked.largest_output = 0;
    // The sum over chunks is rounded in another order.
    EXPECT_NEAR(chunked.task.training_step(batch, 0).item<double>(), loss, 1e-5);
    EXPECT_NEAR(trainer.test(chunked.task, data).at("test_loss"), tested.at("test_loss"), 1e-5);
    EXPECT_NEAR(trainer.validate(chunked.task, data).at("val_loss"), validated.at("val_loss"), 1e-5);
    EXPECT_EQ(trainer.test(chunked.task, data).at("test_accuracy"), tested.at("test_accuracy"));
    EXPECT_EQ(chunked.largest_output, chunk);
  }
}

TEST(ClassificationTask, AChunkedLossNeedsBothPartsAndAChunk) {
  Chunked chunked;
  const auto both = testing::HasSubstr("a chunked loss needs both parts of the forward pass");
  EXPECT_THAT(chunked.set_chunk(4, /*has_hidden=*/false, /*has_output=*/true), both);
  EXPECT_THAT(chunked.set_chunk(4, /*has_hidden=*/true, /*has_output=*/false), both);
  EXPECT_THAT(chunked.set_chunk(0), testing::HasSubstr("in chunks of 0 positions; give at least 1"));
}

TEST(ClassificationTask, ABatchWithoutATargetOrWithoutSamplesIsRefused) {
  const auto error = [](const at::Tensor& logits, const at::Tensor& target) {
    return error_of([&] { of_logits().training_step({logits, target, {}}, 0); });
  };
  EXPECT_THAT(error(torch::ones({2, 3}), {}), testing::HasSubstr("do not fit targets (none)"));
  EXPECT_THAT(error(torch::ones({0, 3}), {}), testing::HasSubstr("do not fit targets (none)"));
  EXPECT_THAT(error(torch::ones({3}), torch::tensor(1)),
              testing::HasSubstr("logits [3] do not fit targets []"));
  EXPECT_THAT(error(torch::ones({}), torch::tensor(1)),
              testing::HasSubstr("logits [] do not fit targets []"));
}

}  // namespace
}  // namespace mantissa::classification_task_test
