#include "mantissa/trainer/trainer.h"

#include <algorithm>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/amp/matmul_precision.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::trainer_test {
namespace {

TEST(Trainer, ERR02_ERR15_ERR27_RefusesWhatDoesNotFitTogetherBeforeAnyWork) {
  const auto error = [](const TrainerOptions& options) {
    return error_of([&] { Trainer trainer(options); });
  };
  EXPECT_THAT(error({.precision = "32", .precision_plugin = make_precision("32", at::kCPU)}),
              testing::HasSubstr("both precision='32' and a precision_plugin were given; choose one"));
  EXPECT_THAT(error({.precision = "fp8"}), testing::HasSubstr("'fp8' is not a mode"));
  EXPECT_THAT(error({.max_epochs = -1}), testing::HasSubstr("would never end"));
  EXPECT_THAT(error({.max_epochs = -2}), testing::HasSubstr("max_epochs=-2"));
  EXPECT_THAT(error({.accumulate_grad_batches = 0}), testing::HasSubstr("at least 1, got 0"));
  EXPECT_THAT(error({.gradient_clip_val = -1}), testing::HasSubstr("gradient_clip_val"));
  EXPECT_THAT(error({.gradient_clip_algorithm = "both"}), testing::HasSubstr("choose norm or value"));
  EXPECT_EQ(error({.device = "cpu", .gradient_clip_algorithm = "NORM"}), "no error");
  const std::shared_ptr<Precision> plugin = make_precision("16-mixed", at::kCPU);
  EXPECT_THAT(
      error({.precision_options = {.loss_scale = "128"}, .precision_plugin = plugin}),
      testing::HasSubstr("precision_options, amp_backend and amp_level apply to modes chosen by name"));
  EXPECT_THAT(error({.amp_backend = "apex", .precision_plugin = plugin}), testing::HasSubstr("amp_backend"));
  EXPECT_THAT(error({.precision = "bf16", .amp_backend = "apex"}), testing::HasSubstr("choose by amp_level"));
  const PrecisionOptions skips{.warn_after_skips = 5}, shrinks{.growth_factor = 0.5};
  EXPECT_THAT(
      error({.precision_options = skips, .precision_plugin = plugin}),
      testing::HasSubstr("precision_options, amp_backend and amp_level apply to modes chosen by name"));
  EXPECT_THAT(error({.precision_options = {.loss_scale = "128"}}), testing::HasSubstr("only fp16 gradients"));
  EXPECT_THAT(error({.precision = "16-mixed", .precision_options = shrinks}),
              testing::HasSubstr("growth_factor 0.5 is out of range"));
  EXPECT_THAT(error({.precision_options = {.float32_matmul_precision = "hihg"}}),
              testing::HasSubstr("float32_matmul_precision: 'hihg' is not one of highest, high, medium; did "
                                 "you mean 'high'?"));
  EXPECT_EQ(Trainer({.precision = "16", .amp_backend = "apex", .device = "cpu"}).precision().name(), "O2");
  EXPECT_EQ(Trainer({.amp_backend = "apex", .amp_level = "O1", .device = "cpu"}).precision().name(), "O1");
  struct Elsewhere : Precision {
    Elsewhere() : Precision("elsewhere") {}
    std::optional<at::DeviceType> device_type() const override { return at::kCUDA; }
  };
  EXPECT_THAT(error({.precision_plugin = std::make_shared<Elsewhere>(), .device = "cpu"}),
              testing::HasSubstr("another kind of device than cpu"));
}

TEST(Trainer, ERR17_RefusesEmptyLoadersAndUselessLosses) {
  OneWeight task;
  Trainer trainer({.device = "cpu"});
  ListLoader empty({}), good = loader_of({1});
  EXPECT_THAT(error_of([&] { trainer.fit(task, empty); }), testing::HasSubstr("no batches"));
  EXPECT_THAT(error_of([&] { trainer.fit(task, good, &empty); }), testing::HasSubstr("no batches"));
  EXPECT_THAT(error_of([&] { trainer.validate(task, empty); }), testing::HasSubstr("no batches"));
  struct Detached : OneWeight {
    at::Tensor training_step(const Batch&, int64_t) override { return torch::ones({}); }
  } detached;
  EXPECT_THAT(error_of([&] { trainer.fit(detached, good); }),
              testing::HasSubstr("a loss without a gradient"));
}

TEST(Trainer, MatmulPrecisionHoldsForTheRunAndNoLonger) {
  struct Asks : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      seen.push_back(get_float32_matmul_precision());
      return OneWeight::training_step(batch, index);
    }
    void validation_step(const Batch&, int64_t) override { seen.push_back(get_float32_matmul_precision()); }
    std::vector<std::string> seen;
  } task;
  ListLoader train = loader_of({1}), val = loader_of({1});
  const Float32MatmulPrecisionGuard outer("medium");
  Trainer trainer({.precision_options = {.float32_matmul_precision = "high"},
                   .device = "cpu",
                   .num_sanity_val_steps = 0});
  EXPECT_EQ(get_float32_matmul_precision(), "medium") << "a trainer that only waits changes nothing";
  trainer.fit(task, train, &val);
  EXPECT_EQ(get_float32_matmul_precision(), "medium");
  trainer.validate(task, val);
  EXPECT_EQ(get_float32_matmul_precision(), "medium");
  task.throws_at = 1;
  EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
  EXPECT_EQ(get_float32_matmul_precision(), "medium");
  task.throws_at = -kInf;
  Trainer({.device = "cpu"}).fit(task, train);
  EXPECT_THAT(task.seen, testing::ElementsAre("high", "high", "high", "high", "medium"));
}

TEST(Trainer, CallsHooksInLightningsOrder) {
  OneWeight task;
  Trainer trainer(
      {.device = "cpu", .max_epochs = 1, .num_sanity_val_steps = 0, .accumulate_grad_batches = 2});
  ListLoader train = loader_of({1, 2, 3}), val = loader_of({5, 7});
  const FitResult result = trainer.fit(task, train, &val);
  EXPECT_EQ(task.trace,
            "fzba"
            "fbas"
            "fzbas"
            "vv");             // zero_grad comes after the forward pass, once per window
  EXPECT_EQ(result.steps, 2);  // the last batch of an epoch steps even if its window is not full
  EXPECT_DOUBLE_EQ(task.weight(), -((1 + 2) / 2.0) - 3 / 2.0);
  EXPECT_DOUBLE_EQ(result.metrics.at("val_x"), 6);
  EXPECT_FALSE(task.validated_in_training_mode);
  EXPECT_FALSE(task.validated_with_gradients);
  EXPECT_TRUE(task.net->is_training());
}

TEST(Trainer, HooksSeeScaledGradientsAfterBackwardAndUnscaledOnesBeforeTheStep) {
  OneWeight task;
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer(
      {.precision = "16-mixed", .device = "cpu", .gradient_clip_val = 1, .callbacks = {recorder}});
  ListLoader train = loader_of({4});
  trainer.fit(task, train);
  EXPECT_EQ(task.after_backward, 4 * 65536.0F);
  EXPECT_EQ(task.before_step, 4.0F);
  EXPECT_NEAR(task.weight(), -1, 1e-6);
}

TEST(Trainer, ReportsLossesNeitherScaledNorDivided) {
  OneWeight task;
  task.net->weight.data().fill_(0.5);
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer(
      {.precision = "16-mixed", .device = "cpu", .accumulate_grad_batches = 2, .callbacks = {recorder}});
  ListLoader train = loader_of({4, 6});
  const FitResult result = trainer.fit(task, train);
  EXPECT_EQ(recorder->batches[0].loss.item<float>(), 2.0F);
  EXPECT_EQ(recorder->batches[1].loss.item<float>(), 3.0F);
  EXPECT_DOUBLE_EQ(result.metrics.at("train_loss"), 2.5);
}

TEST(Trainer, AFrozenLayerStaysInEvaluationMode) {
  struct Frozen : OneWeight {
    torch::nn::Module& module() override { return *both; }
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      frozen_in_training |= frozen->is_training();
      thawed_in_training &= net->is_training();
      return OneWeight::training_step(batch, index);
    }
    void validation_step(const Batch&, int64_t) override {
      if (fails) throw std::runtime_error("validation_step failed");
    }
    torch::nn::BatchNorm1d frozen{2};
    torch::nn::ModuleList both{net, frozen};
    bool frozen_in_training = false, thawed_in_training = true, fails = false;
  } task;
  task.frozen->eval();
  Trainer trainer({.device = "cpu", .max_epochs = 2});
  ListLoader train = loader_of({1}), val = loader_of({1});
  trainer.fit(task, train, &val);
  trainer.validate(task, val);
  task.fails = true;
  EXPECT_THROW(trainer.validate(task, val), std::runtime_error);
  EXPECT_FALSE(task.frozen_in_training);
  EXPECT_TRUE(task.thawed_in_training);
  EXPECT_TRUE(task.net->is_training());
  EXPECT_FALSE(task.frozen->is_training());
}

TEST(Trainer, ValidationsWordIsTheLastOnAMetricOfTheSameName) {
  struct Both : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      log("accuracy", 0.25);
      return OneWeight::training_step(batch, index);
    }
    void validation_step(const Batch&, int64_t) override { log("accuracy", 0.75); }
  } task;
  Trainer trainer({.device = "cpu"});
  ListLoader train = loader_of({1}), val = loader_of({1});
  EXPECT_EQ(trainer.fit(task, train, &val).metrics.at("accuracy"), 0.75);
}

TEST(Trainer, RefusesALoaderThatRunsDry) {
  struct Dry final : Loader {
    void set_epoch(int64_t) override {}
    std::optional<Batch> next() override { return std::nullopt; }
    int64_t size() const override { return 50; }
  } dry;
  OneWeight task;
  Trainer trainer({.device = "cpu", .max_epochs = -1, .max_steps = 10});
  EXPECT_THAT(error_of([&] { trainer.fit(task, dry); }), testing::HasSubstr("gave no batch in epoch 0"));
}

TEST(Trainer, CountsSamplesOfBatchesThatHaveNamedFieldsAlone) {
  struct Named : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t) override {
      return (net->weight * batch.fields.at("x")).sum();
    }
  } task;
  Trainer trainer({.device = "cpu"});
  ListLoader train(std::vector<Batch>{Batch{{}, {}, {{"x", torch::ones({2, 1})}}}});
  const FitResult result = trainer.fit(task, train);
  EXPECT_EQ(result.metrics.count("train_loss"), 1U);
  EXPECT_GT(result.samples_per_second, 0);
}

TEST(Trainer, CL05_ClipsAboveZeroByNormUnlessConfiguredOtherwiseAndNeverThrows) {
  const auto weight_after = [](const TrainerOptions& options, float gradient) {
    OneWeight task;
    ListLoader train = loader_of({gradient});
    Trainer(options).fit(task, train);
    return task.weight();
  };
  EXPECT_EQ(weight_after({.device = "cpu", .gradient_clip_val = 0}, 4), -4);
  EXPECT_NEAR(weight_after({.device = "cpu", .gradient_clip_val = 0.25}, 4), -0.25, 1e-6);
  EXPECT_NEAR(weight_after({.device = "cpu", .gradient_clip_val = 8}, 4), -4, 1e-6);
  EXPECT_TRUE(std::isnan(weight_after({.device = "cpu", .gradient_clip_val = 1}, kInf)));
}

TEST(Trainer, ClipsByValue) {
  OneWeight task;
  Trainer trainer({.device = "cpu", .gradient_clip_val = 0.25, .gradient_clip_algorithm = "value"});
  ListLoader train = loader_of({4});
  trainer.fit(task, train);
  EXPECT_DOUBLE_EQ(task.weight(), -0.25);
}

TEST(Trainer, IN06_AnExceptionReachesTheCallerAndTheCallbacksAndLeavesNothingBehind) {
  for (const Mode& mode : modes()) {
    if (mode.traits.frozen_weights) continue;  // the task has no other parameter
    OneWeight task;
    task.throws_at = 2;
    auto recorder = std::make_shared<Recorder>();
    Trainer trainer({.precision = mode.name, .device = "cpu", .callbacks = {recorder}});
    ListLoader train = loader_of({1, 2, 3});
    EXPECT_THROW(trainer.fit(task, train), std::runtime_error) << mode.name;
    EXPECT_TRUE(recorder->failed);
    EXPECT_FALSE(recorder->ended);
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
    EXPECT_EQ(torch::ones({1, 1}).mm(torch::ones({1, 1})).scalar_type(), at::kFloat);
  }
}

TEST(Trainer, CtrlCEndsAfterTheCurrentStep) {
  OneWeight task;
  task.raise_at = 2;
  auto recorder = std::make_shared<Recorder>();
  Trainer trainer({.device = "cpu", .max_epochs = 5, .accumulate_grad_batches = 2, .callbacks = {recorder}});
  ListLoader train = loader_of({2, 3, 4, 5});
  const FitResult result = trainer.fit(task, train);
  EXPECT_EQ(result.interrupted_by, SIGINT);
  EXPECT_EQ(result.steps, 1);
  EXPECT_EQ(result.epochs, 0);
  EXPECT_TRUE(recorder->ended);
  EXPECT_DOUBLE_EQ(task.weight(), -2.5);  // the window of the interrupted batch is complete
}

TEST(Trainer, ASignalEndsAValidationWhoseMetricsAreLeftOut) {
  OneWeight task;
  task.raise_at = 20;
  auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({1, 2}), val = loader_of({10, 20, 30});
  Trainer trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {recorder}});
  const FitResult result = trainer.fit(task, train, &val);
  EXPECT_EQ(result.interrupted_by, SIGTERM);
  EXPECT_EQ(std::count(task.trace.begin(), task.trace.end(), 'v'), 2);
  EXPECT_TRUE(result.metrics.contains("train_loss"));
  EXPECT_FALSE(result.metrics.contains("val_x"));
  EXPECT_TRUE(recorder->ended);
}

TEST(Trainer, AStopInAValidationEndsTheRunThere) {
  struct Stops final : Callback {
    void on_validation_end(Trainer& trainer) override { trainer.stop("enough"); }
  };
  OneWeight task;
  ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({9});
  const FitResult result = Trainer({.device = "cpu",
                                    .val_check_interval = 2,
                                    .num_sanity_val_steps = 0,
                                    .callbacks = {std::make_shared<Stops>()}})
                               .fit(task, train, &val);
  EXPECT_EQ(result.steps, 2);
  EXPECT_EQ(std::count(task.trace.begin(), task.trace.end(), 'v'), 1);
}

TEST(Trainer, EndsAtMaxStepsInTheMiddleOfAnEpochAndStillValidates) {
  OneWeight task;
  Trainer trainer({.device = "cpu", .max_epochs = -1, .max_steps = 5});
  ListLoader train = loader_of({1, 1, 1}), val = loader_of({9});
  const FitResult result = trainer.fit(task, train, &val);
  EXPECT_EQ(result.steps, 5);
  EXPECT_EQ(result.epochs, 1);
  EXPECT_EQ(result.metrics.at("val_x"), 9);
  EXPECT_EQ(Trainer({.device = "cpu", .max_steps = 0}).fit(task, train).steps, 0);
}

TEST(Trainer, ValidatesWithoutTraining) {
  OneWeight task;
  Trainer trainer({.precision = "bf16-mixed", .device = "cpu"});
  ListLoader val = loader_of({1, 3});
  task.net->eval();
  EXPECT_DOUBLE_EQ(trainer.validate(task, val).at("val_x"), 2);
  EXPECT_FALSE(task.net->is_training());
}

TEST(Trainer, IN15_ConvertsTheModelBeforeItMakesTheOptimizer) {
  struct Late : OneWeight {
    void configure_model() override { made_in = torch::ones(1).scalar_type(); }
    std::vector<OptimizerConfig> configure_optimizers() override {
      optimized = net->weight.scalar_type();
      return OneWeight::configure_optimizers();
    }
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      input = batch.data.scalar_type();
      return OneWeight::training_step(batch, index);
    }
    at::ScalarType made_in{}, optimized{}, input{};
  } task;
  Trainer trainer({.precision = "bf16-true", .device = "cpu"});
  ListLoader train = loader_of({1});
  trainer.fit(task, train);
  EXPECT_EQ(task.made_in, at::kBFloat16);
  EXPECT_EQ(task.optimized, at::kBFloat16);
  EXPECT_EQ(task.input, at::kBFloat16);
}

TEST(Task, LogOutsideARunSaysSo) {
  struct Loud : OneWeight {
    void shout() { log("x", 1.0); }
  } task;
  EXPECT_THAT(error_of([&] { task.shout(); }), testing::HasSubstr("inside training_step()"));
}

TEST(Task, StepsOfItsOwnOutsideAFitSaySo) {
  struct Steps : OneWeight {
    void validation_step(const Batch& batch, int64_t) override {
      manual_backward((net->weight * batch.data).sum());
    }
  } task;
  ListLoader val = loader_of({1});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu"}).validate(task, val); }),
              testing::HasSubstr("this run is not a fit"));
}

TEST(Trainer, ABatchesReportSaysWhichItIs) {
  OneWeight task;
  ListLoader train = loader_of({1, 2});
  const auto recorder = std::make_shared<Recorder>();
  Trainer({.device = "cpu", .max_epochs = 2, .callbacks = {recorder}}).fit(task, train);
  std::vector<std::pair<int64_t, int64_t>> batches;
  for (const TrainBatch& batch : recorder->batches) batches.emplace_back(batch.epoch, batch.batch_index);
  EXPECT_THAT(batches, testing::ElementsAre(testing::Pair(0, 0), testing::Pair(0, 1), testing::Pair(1, 0),
                                            testing::Pair(1, 1)));
}

}  // namespace
}  // namespace mantissa::trainer_test
