// At which value each refusal of this room begins, and what it says. Each part of a condition has a value that only this
// part refuses. trainer_options_test.cpp does the same for the Trainer's options.
#include <chrono>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/precision_monitor.h"
#include "mantissa/trainer/callbacks/timer.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loggers/logger.h"
#include "mantissa/trainer/metrics.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::refusals_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const double kNan = std::nan("");

/// Returns the error of the constructor.
template <typename Made, typename Options>
std::string made(const Options& options) {
  return error_of([&] { Made object(options); });
}

TEST(Refusals, OfEarlyStoppingBeginWhereTheySay) {
  const auto error = made<EarlyStopping, EarlyStoppingOptions>;
  EXPECT_THAT(error({}), HasSubstr("EarlyStopping: no monitor; name a metric that the task logs"));
  EXPECT_EQ(error({.monitor = "x", .mode = "max"}), "no error");
  EXPECT_THAT(error({.monitor = "x", .mode = "mim"}),
              HasSubstr("unknown mode 'mim'; did you mean 'min'?; choose min"));
  EXPECT_EQ(error({.monitor = "x", .patience = 0}), "no error");
  EXPECT_THAT(error({.monitor = "x", .patience = -1}), HasSubstr("patience=-1; give 0 or more checks"));
  EXPECT_THAT(error({.monitor = "x", .min_delta = kNan}), HasSubstr("min_delta=nan; give a finite number"));
  EXPECT_EQ(error({.monitor = "x", .min_delta = -0.5}), "no error");
}

TEST(Refusals, OfModelCheckpointBeginWhereTheySay) {
  const auto error = made<ModelCheckpoint, ModelCheckpointOptions>;
  EXPECT_THAT(error({.mode = "mim"}), HasSubstr("unknown mode 'mim'"));
  EXPECT_THAT(error({.save_top_k = -2}), HasSubstr("save_top_k=-2; give a count, or -1 to keep all"));
  EXPECT_EQ(error({.save_top_k = -1}), "no error");
  EXPECT_EQ(error({.save_top_k = 0}), "no error") << "the last one is kept";
  EXPECT_THAT(error({.save_top_k = 0, .save_last = false}),
              HasSubstr("save_top_k=0 without save_last keeps nothing"));
  EXPECT_EQ(error({.save_top_k = 1, .save_last = false}), "no error");
  EXPECT_THAT(error({.every_n_epochs = -1}),
              HasSubstr("every_n_epochs=-1, every_n_train_steps=0; give counts"));
  EXPECT_THAT(error({.every_n_train_steps = -1}), HasSubstr("every_n_train_steps=-1; give counts, or 0 for"));
  EXPECT_THAT(error({.dirpath = ""}), HasSubstr("dirpath is empty; name a folder, or leave it out"));
}

TEST(Refusals, OfOtherCallbacksBeginWhereTheySay) {
  const auto monitor = made<PrecisionMonitor, PrecisionMonitorOptions>;
  EXPECT_THAT(monitor({.every_n_steps = 0}), HasSubstr("every_n_steps=0; give 1 or more, or leave it unset"));
  EXPECT_EQ(monitor({.every_n_steps = 1}), "no error");
  const auto timer = made<Timer, TimerOptions>;
  EXPECT_THAT(timer({.duration = milliseconds(0)}),
              HasSubstr("duration=0 ms; give more than 0, or leave it"));
  EXPECT_THAT(timer({.duration = milliseconds(-5)}), HasSubstr("duration=-5 ms"));
  EXPECT_EQ(timer({.duration = milliseconds(1)}), "no error");
  const auto average = made<EMAWeightAveraging, EMAWeightAveragingOptions>;
  for (const double decay : {-0.1, 1.0, kNan})
    EXPECT_THAT(average({.ema = {.decay = decay}}), HasSubstr("the decay must be in [0, 1); got "));
  EXPECT_EQ(average({.ema = {.decay = 0}}), "no error");
  EXPECT_THAT(average({.update_every_n_steps = 0}), HasSubstr("are counts from 1; got 0 and "));
  EXPECT_EQ(average({.update_every_n_steps = 1}), "no error");
  EXPECT_THAT(average({.update_starting_at_step = 0}), HasSubstr("are counts from 1; got 1 and 0"));
  EXPECT_EQ(average({.update_starting_at_step = 1}), "no error");
}

TEST(Refusals, OfMetricsThatAreNotOneNumber) {
  const auto logged = [](const at::Tensor& value) { return error_of([&] { MetricValue metric(value); }); };
  EXPECT_THAT(logged({}), HasSubstr("a metric is one real number, got an undefined tensor; reduce it first"));
  EXPECT_THAT(logged(torch::ones({2})), HasSubstr("got a tensor of float with shape [2]"));
  EXPECT_THAT(logged(torch::ones({}, at::kComplexFloat)),
              HasSubstr("a metric is one real number, got a tensor of"));
  EXPECT_THAT(logged(torch::ones({}, at::kMeta)), HasSubstr("a metric is one real number, got a tensor of"));
  EXPECT_EQ(logged(torch::ones({1, 1})), "no error");
  MeanMetrics metrics;
  EXPECT_THAT(error_of([&] { metrics.add("loss", torch::ones({2}), 1); }),
              HasSubstr("log('loss'): a metric is one number, got shape [2]; reduce it first"));
  EXPECT_THAT(error_of([&] { metrics.add("loss", at::Tensor(), 1); }),
              HasSubstr("log('loss'): a metric is one number, got an undefined tensor"));
}

/// A task whose step returns what a test wants, and that may step by itself.
struct Returning : OneWeight {
  Returning(std::function<at::Tensor(const at::Tensor&)> of, bool is_automatic)
      : loss(std::move(of)), automatic(is_automatic) {}
  bool automatic_optimization() const override { return automatic; }
  at::Tensor training_step(const Batch& batch, int64_t) override { return loss(net->weight * batch.data); }
  std::function<at::Tensor(const at::Tensor&)> loss;
  bool automatic;
};

TEST(Refusals, OfLossesNameTheBatchAndTheReason) {
  const auto error = [](const std::function<at::Tensor(const at::Tensor&)>& loss, bool is_automatic) {
    Returning task(loss, is_automatic);
    ListLoader loader = loader_of({1});
    return error_of([&] { Trainer({.device = "cpu"}).fit(task, loader); });
  };
  const auto two = [](const at::Tensor& y) { return torch::cat({y, y}); };
  const auto detached = [](const at::Tensor& y) { return y.detach().sum(); };
  EXPECT_THAT(error(two, true),
              HasSubstr("batch 0 of epoch 0 returned more than one number; return a scalar made"));
  EXPECT_THAT(error(detached, true), HasSubstr("batch 0 of epoch 0 returned a loss without a gradient"));
  const auto complex = [](const at::Tensor& y) { return y.sum().to(at::kComplexFloat); };
  EXPECT_THAT(error(complex, true), HasSubstr("batch 0 of epoch 0 returned a complex loss; return a scalar"));
  EXPECT_THAT(error(two, false),
              HasSubstr("batch 0 of epoch 0 returned more than one number; return a scalar for display"));
  EXPECT_EQ(error(detached, false), "no error");
}

TEST(Refusals, OfOptionsForATaskThatStepsByItself) {
  const auto error = [](TrainerOptions options) {
    Returning task([](const at::Tensor& y) { return y.detach().sum(); }, /*is_automatic=*/false);
    ListLoader loader = loader_of({1});
    options.device = "cpu";
    return error_of([&] { Trainer(options).fit(task, loader); });
  };
  EXPECT_EQ(error({}), "no error");
  EXPECT_THAT(error({.gradient_clip_val = 0.5}),
              HasSubstr("gradient_clip_val=0.5 is for automatic optimization"));
  EXPECT_THAT(error({.accumulate_grad_batches = 2}), HasSubstr("accumulate_grad_batches=2 is for automatic"));
  EXPECT_THAT(error({.transactional = true}),
              HasSubstr("transactional and trace_nonfinite follow the Trainer's"));
  EXPECT_THAT(error({.trace_nonfinite = true}),
              HasSubstr("transactional and trace_nonfinite follow the Trainer's"));
}

TEST(Refusals, OfOptimizersNameWhichOne) {
  struct Configured : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override { return configs; }
    std::vector<OptimizerConfig> configs;
  };
  const auto error = [](const std::function<std::vector<OptimizerConfig>(OneWeight&)>& configure,
                        TrainerOptions options = {}) {
    Configured task;
    task.configs = configure(task);
    ListLoader loader = loader_of({1});
    options.device = "cpu";
    return error_of([&] { Trainer(options).fit(task, loader); });
  };
  const auto sgd = [](OneWeight& task) {
    return std::make_shared<torch::optim::SGD>(task.net->parameters(), 1.0);
  };
  EXPECT_THAT(error([](OneWeight&) { return std::vector<OptimizerConfig>(); }),
              HasSubstr("configure_optimizers() returned no optimizer; return one for"));
  EXPECT_THAT(error([](OneWeight&) { return std::vector<OptimizerConfig>{{nullptr}}; }),
              HasSubstr("optimizer 0 of configure_optimizers() is null"));
  EXPECT_THAT(error([&](OneWeight& task) {
                std::vector<OptimizerConfig> configs{{sgd(task)}};
                configs[0].frequency = 0;
                return configs;
              }),
              HasSubstr("has a schedule with frequency 0; give at least 1"));
  EXPECT_THAT(error([&](OneWeight& task) {
                const auto one = sgd(task);
                return std::vector<OptimizerConfig>{{one}, {one}};
              }),
              HasSubstr("optimizers 0 and 1 of configure_optimizers() are one; return it once"));
  EXPECT_THAT(error([&](OneWeight& task) {
                return std::vector<OptimizerConfig>{{sgd(task)}, {sgd(task)}};
              }),
              HasSubstr("returned 2 optimizers, and only the task knows which of them a loss is for"));
  const auto lbfgs = [](OneWeight& task) {
    return std::vector<OptimizerConfig>{{std::make_shared<torch::optim::LBFGS>(task.net->parameters())}};
  };
  EXPECT_THAT(error(lbfgs, {.accumulate_grad_batches = 2}),
              HasSubstr("which accumulate_grad_batches=2 cannot follow"));
  EXPECT_EQ(error(lbfgs), "no error");
}

TEST(Refusals, OfASharedLoaderBeginWithValidationsInsideAnEpoch) {
  const auto error = [](TrainerOptions options) {
    OneWeight task;
    ListLoader loader = loader_of({1, 2});
    options.device = "cpu";
    return error_of([&] { Trainer(options).fit(task, loader, &loader); });
  };
  EXPECT_EQ(error({}), "no error");
  EXPECT_THAT(error({.val_check_interval = 1}), HasSubstr("training and validation share a loader"));
  EXPECT_EQ(error({.val_check_interval = 2}), "no error");
}

}  // namespace
}  // namespace mantissa::refusals_test
