// Tests TrainerOptions::on_overflow: a window whose gradients overflow is computed again at a lower scale.
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/registry.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loop/checkpoint_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::retry_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Classifies random numbers, with all that a second pass must repeat: dropout and batch norm.
class Net final : public Task {
 public:
  explicit Net(std::string optimizer) : optimizer_(std::move(optimizer)) {
    torch::manual_seed(3);
    net = torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::ReLU(),
                                torch::nn::Dropout(0.3), torch::nn::Linear(16, 4));
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{make_optimizer(optimizer_, *net, {.lr = 1e-3})}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    ++passes;
    return torch::nn::functional::cross_entropy(net->forward(batch.data).to(at::kFloat), batch.target);
  }
  bool equals(const Net& other) const {
    return std::ranges::equal(state(), other.state(),
                              [](const at::Tensor& a, const at::Tensor& b) { return a.equal(b); });
  }

  torch::nn::Sequential net{nullptr};
  int64_t passes = 0;

 private:
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all = net->parameters();
    for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer);
    return all;
  }
  std::string optimizer_;
};

ListLoader batches(int64_t count) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(7);
  std::vector<Batch> all;
  for (int64_t i = 0; i < count; ++i)
    all.push_back({at::randn({8, 8}, random), at::randint(4, {8}, random, at::kLong), {}});
  return ListLoader(std::move(all));
}

TrainerOptions retrying(PrecisionOptions precision = {}) {
  return {.precision = "16-mixed",
          .precision_options = std::move(precision),
          .device = "cpu",
          .on_overflow = "retry"};
}

TEST(Retry, AThousandBatchesWithOverflowsAreTrainedAsAtTheRightScale) {
  struct Case {
    std::string optimizer;
    int64_t window;
    double clip;
  };
  for (const Case& c : {Case{"sgd", 1, 0}, Case{"fused-adamw", 3, 0.5}, Case{"adamw", 1, 0.5}}) {
    const auto fit = [&](Net& task, bool retries, PrecisionOptions precision, double* scale = nullptr) {
      TrainerOptions options = retrying(std::move(precision));
      options.on_overflow = retries ? "retry" : "skip";
      options.accumulate_grad_batches = c.window;
      options.gradient_clip_val = c.clip;
      ListLoader train = batches(1000);
      torch::manual_seed(5);
      Trainer trainer(options);
      const FitResult result = trainer.fit(task, train);
      if (scale) *scale = scaler_state(trainer.precision()).at("scale").toDouble();
      return result;
    };
    double right_scale = 0;
    Net at_once(c.optimizer), lowered(c.optimizer), moving(c.optimizer);
    const FitResult once = fit(lowered, true, {.init_scale = 0x1p60}, &right_scale);
    EXPECT_EQ(once.skipped_steps, 0);
    EXPECT_EQ(once.steps, (1000 + c.window - 1) / c.window);
    EXPECT_EQ(once.retries, std::log2(0x1p60 / right_scale));
    EXPECT_GT(once.retries, 20);
    EXPECT_EQ(lowered.passes, 1000 + c.window * once.retries) << "all overflows were in the first window";

    EXPECT_EQ(fit(at_once, false, {.init_scale = right_scale}).skipped_steps, 0);
    EXPECT_TRUE(lowered.equals(at_once)) << c.optimizer;

    // The scale grows after every step until it is too high, which it is again and again.
    const FitResult often = fit(moving, true, {.init_scale = right_scale, .growth_interval = 1});
    EXPECT_EQ(often.skipped_steps, 0);
    EXPECT_GT(often.retries, once.steps / 4);
    EXPECT_TRUE(moving.equals(at_once)) << c.optimizer;
  }
}

TEST(Retry, WithoutItTheBatchesAreLost) {
  Net task("sgd");
  TrainerOptions options = retrying({.init_scale = 0x1p60});
  options.on_overflow = "skip";
  ListLoader train = batches(100);
  const FitResult result = Trainer(options).fit(task, train);
  EXPECT_GT(result.skipped_steps, 20);
  EXPECT_EQ(result.retries, 0);
  EXPECT_EQ(task.passes, 100);
}

class ResumedRetries : public InFolder {};

TEST_F(ResumedRetries, ContinueBitForBit) {
  const auto fit = [&](Net& task, int64_t max_steps, bool saves, const std::filesystem::path& from) {
    TrainerOptions options = retrying({.init_scale = 0x1p30, .growth_interval = 1});
    options.max_steps = max_steps;
    options.accumulate_grad_batches = 2;
    if (saves)
      options.callbacks = {std::make_shared<ModelCheckpoint>(
          ModelCheckpointOptions{.dirpath = folder_ / "run", .async = false})};
    ListLoader train = batches(100);
    torch::manual_seed(5);
    return Trainer(options).fit(task, train, nullptr, from);
  };
  Net whole("adamw"), stopped("adamw"), resumed("adamw");
  const FitResult expected = fit(whole, 50, false, "");
  const FitResult before = fit(stopped, 20, true, "");
  EXPECT_GT(before.retries, 10);
  const FitResult result = fit(resumed, 50, false, folder_ / "run");
  EXPECT_TRUE(resumed.equals(whole));
  EXPECT_EQ(result.retries, expected.retries);
  EXPECT_EQ(result.steps, 50);
}

TEST(Retry, RepeatsTheHooksAndCountsNothingTwice) {
  struct Logs final : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      const at::Tensor loss = OneWeight::training_step(batch, index);
      log("x", loss.detach() + 1);
      return loss;
    }
  } task;
  auto recorder = std::make_shared<Recorder>();
  TrainerOptions options = retrying({.init_scale = 4});
  options.callbacks = {recorder};
  ListLoader train = loader_of({1, 2e38F});
  const FitResult result = Trainer(options).fit(task, train);
  EXPECT_EQ(task.trace,
            "fzbas"
            "fzbasfzbasfzbas");
  EXPECT_EQ(result.retries, 2);
  ASSERT_EQ(recorder->batches.size(), 2);
  EXPECT_FALSE(recorder->batches[1].step.skipped());
  EXPECT_EQ(recorder->batches[1].global_step, 2);
  EXPECT_EQ(task.weight(), -1 - 2e38F);
  EXPECT_EQ(result.metrics.at("x"), (1 + 1 - 2e38F) / 2);
}

TEST(Retry, AWindowWithABatchThatIsLeftOutIsRepeatedWhole) {
  OneWeight task;
  TrainerOptions options = retrying({.init_scale = 4});
  options.accumulate_grad_batches = 3;
  ListLoader train = loader_of({3, 3e38F, -1, 1, 1, 1});
  const FitResult result = Trainer(options).fit(task, train);
  EXPECT_EQ(result.skipped_steps, 0);
  EXPECT_EQ(result.retries, 1) << "a third of 3e38 is finite at a scale of 2";
  EXPECT_NEAR(task.weight(), -1e38, 1e32);
  EXPECT_EQ(task.trace,
            "fzbafbafs"
            "fzbafbafs"
            "fzbafbafbas");
}

TEST(Retry, ALossThatIsNotFiniteIsSkippedAtOnce) {
  OneWeight task;
  Trainer trainer(retrying());
  ListLoader train = loader_of({1, kInf, 1});
  const FitResult result = trainer.fit(task, train);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_EQ(result.retries, 0);
  EXPECT_EQ(task.weight(), -2);
  EXPECT_EQ(scaler_state(trainer.precision()).at("scale").toDouble(), 32768);
}

/// Gradients that are not finite although the loss is, in the batch of 2.
struct BrokenGradient final : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    const at::Tensor loss = OneWeight::training_step(batch, index);
    return batch.data.item<float>() == 2 ? loss + (loss - loss.detach()).abs().sqrt() : loss;
  }
};

TEST(Retry, GradientsThatNoScaleCuresAreSkippedAndLowerTheScaleOnce) {
  for (const char* precision : {"16-mixed", "O2"}) {
    BrokenGradient task;
    TrainerOptions options = retrying({.init_scale = 1024});
    options.precision = precision;
    Trainer trainer(options);
    ListLoader train = loader_of({1, 2, 1});
    const FitResult result = trainer.fit(task, train);
    EXPECT_EQ(result.skipped_steps, 1) << precision;
    EXPECT_EQ(result.retries, 11) << "from 2^9 to 2^-1";
    EXPECT_EQ(scaler_state(trainer.precision()).at("scale").toDouble(), 512);
    EXPECT_EQ(scaler_state(trainer.precision()).at("_growth_tracker").toLong(), 1);
    EXPECT_EQ(task.weight(), -2);
  }
}

TEST(Retry, EndsAtAScaleThatCannotFall) {
  BrokenGradient task;
  ListLoader train = loader_of({2, 1});
  const FitResult result = Trainer(retrying({.min_scale = 65536})).fit(task, train);
  EXPECT_EQ(result.retries, TrainerOptions::kMaxRetries);
  EXPECT_EQ(result.skipped_steps, 1);
  EXPECT_EQ(task.weight(), -1);
}

TEST(Retry, AModeWithoutALossScaleHasNothingToRetry) {
  OneWeight task;
  TrainerOptions options = retrying();
  options.precision = "bf16-mixed";
  ListLoader train = loader_of({1, 2});
  EXPECT_EQ(Trainer(options).fit(task, train).retries, 0);
  EXPECT_EQ(task.weight(), -3);
}

TEST(Retry, MasterWeightsAreRepeatedBitForBit) {
  const auto fit = [](Net& task, double init_scale) {
    TrainerOptions options = retrying({.init_scale = init_scale});
    options.precision = "O2";
    ListLoader train = batches(50);
    torch::manual_seed(5);
    return Trainer(options).fit(task, train).retries;
  };
  Net from_above("adamw"), at_once("adamw");
  const int64_t retries = fit(from_above, 0x1p40);
  EXPECT_GT(retries, 5);
  EXPECT_EQ(fit(at_once, 0x1p40 / std::exp2(static_cast<double>(retries))), 0);
  EXPECT_TRUE(from_above.equals(at_once));
}

TEST(Retry, RefusesWhatItCannotDo) {
  OneWeight task;
  ListLoader train = loader_of({1});
  TrainerOptions fixed = retrying({.loss_scale = "128"});
  EXPECT_THAT(error_of([&] { Trainer(fixed).fit(task, train); }),
              HasSubstr("is fixed in this run of '16-mixed'"));
  struct Manual final : OneWeight {
    bool automatic_optimization() const override { return false; }
  } manual;
  EXPECT_THAT(error_of([&] { Trainer(retrying()).fit(manual, train); }),
              HasSubstr("on_overflow=retry repeats the Trainer's own steps"));
  TrainerOptions unknown = retrying();
  unknown.on_overflow = "retrie";
  EXPECT_THAT(error_of([&] { Trainer trainer(unknown); }),
              HasSubstr("unknown on_overflow 'retrie'; did you mean 'retry'?; choose skip or retry"));
}

}  // namespace
}  // namespace mantissa::retry_test
