// Tests how long a fit lasts, what it validates and when.
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/host_reads_internal.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/trainer/loop/diary_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::fit_run_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct FitRun {
  FitResult result;
  std::shared_ptr<Diary> diary = std::make_shared<Diary>();
  OneWeight task;
};

/// Fits four batches (1, 2, 3, 4) with two validation batches.
std::unique_ptr<FitRun> fit(TrainerOptions options, int64_t stops_at = -1) {
  auto run = std::make_unique<FitRun>();
  run->diary->stops_at = stops_at;
  options.device = "cpu";
  options.callbacks.push_back(run->diary);
  ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({5, 7});
  run->result = Trainer(options).fit(run->task, train, &val);
  return run;
}

std::string refusal(const TrainerOptions& options) {
  return error_of([&] { fit(options); });
}

TEST(FitRun, TellsCallbacksInTheOrderThatCallbackStates) {
  const auto run = fit({.limit_train_batches = 2, .limit_val_batches = 1, .accumulate_grad_batches = 2});
  EXPECT_THAT(
      run->diary->lines,
      ElementsAre("setup fit", "fit 2", "sane?", "val", "v0", "val end", "sane", "train", "epoch 0",
                  "batch 1", "zero", "before", "after", "end 0", "batch 2", "before", "after", "step",
                  "end 1", "val", "v0", "val end", "epoch end 0", "train end", "fit end", "teardown"));
}

TEST(FitRun, SanityValidationLeavesNoMetricAndNoRandomNumberBehind) {
  struct Draws : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      if (drawn.numel() == 0) drawn = torch::rand({1});
      return OneWeight::training_step(batch, index);
    }
    void validation_step(const Batch& batch, int64_t index) override {
      torch::rand({3});
      OneWeight::validation_step(batch, index);
    }
    at::Tensor drawn = torch::empty({0});
  };
  struct Looks final : Callback {
    void on_train_start(Trainer& trainer) override { metrics = trainer.callback_metrics(); }
    Metrics metrics;
  };
  std::vector<at::Tensor> drawn;
  for (const int64_t steps : {0, 1, -1}) {
    Draws task;
    const auto looks = std::make_shared<Looks>();
    ListLoader train = loader_of({1}), val = loader_of({5, 7, 9});
    torch::manual_seed(3);
    Trainer({.device = "cpu", .num_sanity_val_steps = steps, .callbacks = {looks}}).fit(task, train, &val);
    drawn.push_back(task.drawn);
    EXPECT_TRUE(looks->metrics.empty());
    EXPECT_EQ(std::count(task.trace.begin(), task.trace.end(), 'v'), 3 + (steps < 0 ? 3 : steps));
  }
  EXPECT_TRUE(drawn[0].equal(drawn[1]) && drawn[0].equal(drawn[2]));
}

TEST(FitRun, LimitsAreCountsOrShares) {
  EXPECT_EQ(fit({.limit_train_batches = 3})->result.steps, 3);
  EXPECT_EQ(fit({.limit_train_batches = 30})->result.steps, 4);
  EXPECT_EQ(fit({.limit_train_batches = 0.5})->result.steps, 2);
  EXPECT_EQ(fit({.limit_train_batches = 1})->result.steps, 1);
  EXPECT_EQ(fit({.limit_train_batches = 1.0})->result.steps, 4);
  const auto none = fit({.max_epochs = 2, .limit_train_batches = 0});
  EXPECT_EQ(none->result.steps, 0);
  EXPECT_EQ(none->result.epochs, 0);
  const auto unvalidated = fit({.limit_val_batches = 0});
  EXPECT_EQ(unvalidated->diary->count("val"), 0);
  EXPECT_FALSE(unvalidated->result.metrics.contains("val_x"));
  EXPECT_DOUBLE_EQ(fit({.limit_val_batches = 0.5})->result.metrics.at("val_x"), 5);
  EXPECT_THAT(refusal({.limit_train_batches = 0.1}),
              HasSubstr("limit_train_batches=0.1 of 4 batches leaves no batch; give at least 0.25"));
  EXPECT_THAT(refusal({.limit_val_batches = 1.5}), HasSubstr("limit_val_batches=1.5 is a share"));
  EXPECT_THAT(refusal({.limit_test_batches = -1}), HasSubstr("limit_test_batches=-1 is negative"));
}

TEST(FitRun, ValidatesInsideAnEpoch) {
  const auto at = [](const FitRun& run) {
    std::vector<std::string> where;
    for (size_t i = 1; i < run.diary->lines.size(); ++i)
      if (run.diary->lines[i] == "val") where.push_back(run.diary->lines[i - 1]);
    return where;
  };
  const TrainerOptions base{.max_epochs = 2, .num_sanity_val_steps = 0};
  TrainerOptions options = base;
  options.val_check_interval = 2;
  EXPECT_THAT(at(*fit(options)), ElementsAre("end 2", "end 4", "end 6", "end 8"));
  options.val_check_interval = 0.5;
  EXPECT_THAT(at(*fit(options)), ElementsAre("end 2", "end 4", "end 6", "end 8"));
  options.val_check_interval = 3;
  EXPECT_THAT(at(*fit(options)), ElementsAre("end 3", "end 7", "end 8")) << "and what the run ends on";
  options.check_val_every_n_epoch = 2;
  EXPECT_THAT(at(*fit(options)), ElementsAre("end 7", "end 8"));
  options.check_val_every_n_epoch = std::nullopt;
  EXPECT_THAT(at(*fit(options)), ElementsAre("end 3", "end 6", "end 8")) << "batches of all epochs count";
  options.val_check_interval = 5;
  EXPECT_THAT(at(*fit(options)), ElementsAre("end 5", "end 8"));
  options.check_val_every_n_epoch = 1;
  EXPECT_THAT(refusal(options), HasSubstr("val_check_interval=5 is above the 4 batches of an epoch"));
  EXPECT_THAT(refusal({.val_check_interval = 0}), HasSubstr("val_check_interval is 0"));
  EXPECT_THAT(refusal({.val_check_interval = 0.5, .check_val_every_n_epoch = std::nullopt}),
              HasSubstr("counts batches over all epochs"));
}

TEST(FitRun, StopEndsTheRunOnceItsMinimaAreReached) {
  const auto at_once = fit({.max_epochs = 5}, /*stops_at=*/2);
  EXPECT_EQ(at_once->result.steps, 2);
  EXPECT_EQ(at_once->result.epochs, 0);
  EXPECT_EQ(at_once->result.stopped_by, "enough");
  EXPECT_EQ(at_once->diary->count("fit end"), 1);
  EXPECT_EQ(fit({.max_epochs = 5, .min_epochs = 2}, 2)->result.steps, 8);
  EXPECT_EQ(fit({.max_epochs = 5, .min_steps = 7}, 2)->result.steps, 7);
  EXPECT_EQ(fit({.max_epochs = 5, .max_steps = 6, .min_steps = 6}, 2)->result.steps, 6);
  EXPECT_EQ(fit({.max_epochs = 1, .min_epochs = 1}, 2)->result.steps, 4);
  EXPECT_THAT(refusal({.max_epochs = 1, .min_epochs = 2}), HasSubstr("min_epochs=2 is above max_epochs=1"));
  EXPECT_THAT(refusal({.max_steps = 1, .min_steps = 2}), HasSubstr("min_steps=2 is above max_steps=1"));
  EXPECT_THAT(refusal({.min_steps = -1}), HasSubstr("min_steps=-1"));
}

TEST(FitRun, MaxTimeEndsARunThatHasNoOtherEnd) {
  const auto run = fit({.max_epochs = -1, .max_time = std::chrono::milliseconds(30)});
  EXPECT_GE(run->result.seconds, 0.03);
  EXPECT_GT(run->result.steps, 0);
  EXPECT_THAT(refusal({.max_time = std::chrono::milliseconds(0)}), HasSubstr("max_time is 0 ms"));
}

TEST(FitRun, OverfitsOnTheSameBatchesAndValidatesOnThem) {
  const auto run = fit({.max_epochs = 2, .overfit_batches = 2, .num_sanity_val_steps = 0});
  EXPECT_EQ(run->diary->count("batch 1"), 2);
  EXPECT_EQ(run->diary->count("batch 3"), 0);
  EXPECT_DOUBLE_EQ(run->result.metrics.at("val_x"), 1.5);
  EXPECT_EQ(fit({.overfit_batches = 0.25})->result.steps, 1);

  // A shuffling loader gives other batches in each epoch, which must not happen here.
  struct Remembers : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t /*index*/) override {
      seen.push_back(batch.data.sum().item<float>());
      return (net->weight * batch.data).sum() * 0;
    }
    std::vector<float> seen;
  } task;
  DataLoader loader(std::make_shared<TensorDataset>(torch::arange(64.0).reshape({64, 1})),
                    {.batch_size = 4, .shuffle = true});
  Trainer({.device = "cpu", .max_epochs = 2, .overfit_batches = 2}).fit(task, loader);
  ASSERT_EQ(task.seen.size(), 4U);
  EXPECT_EQ(task.seen[0], task.seen[2]);
  EXPECT_EQ(task.seen[1], task.seen[3]);
}

TEST(FitRun, FastDevRunTakesOneBatchOfEverything) {
  const auto run = fit({.max_epochs = 50, .fast_dev_run = true});
  EXPECT_EQ(run->result.steps, 1);
  EXPECT_EQ(run->diary->count("v0"), 1);
  EXPECT_EQ(run->diary->count("v1"), 0);
}

TEST(FitRun, AValidationInsideAnEpochLeavesOverfittingItsPlace) {
  const auto diary = std::make_shared<Diary>();
  OneWeight task;
  ListLoader train = loader_of({1, 2, 3, 4, 5}), val = loader_of({9});
  Trainer({.device = "cpu",
           .overfit_batches = 4,
           .val_check_interval = 2,
           .num_sanity_val_steps = 0,
           .callbacks = {diary}})
      .fit(task, train, &val);
  EXPECT_EQ(
      diary->count("batch 1") + diary->count("batch 2") + diary->count("batch 3") + diary->count("batch 4"),
      4);
  EXPECT_EQ(diary->count("val"), 2);
  EXPECT_EQ(diary->count("v3"), 2);
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu", .val_check_interval = 2}).fit(task, train, &train); }),
              HasSubstr("share a loader"));
  EXPECT_EQ(Trainer({.device = "cpu"}).fit(task, train, &train).steps, 5);
}

TEST(FitRun, BatchesWithoutASampleAreCountedAndLeftOut) {
  const Batch empty{torch::zeros({0, 1}), torch::zeros({0}, at::kLong), {}};
  const Batch one{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}};
  OneWeight task;
  const auto recorder = std::make_shared<Recorder>();
  TrainerOptions options{.max_epochs = 2};
  options.callbacks = {recorder};
  ListLoader train({empty, one, empty}), val({empty, one});
  const FitResult result = Trainer(options).fit(task, train, &val);
  EXPECT_EQ(result.epochs, 2);
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(task.weight(), -2) << "of the two batches with a sample";
  EXPECT_EQ(recorder->batches.size(), 6U);
  EXPECT_EQ(result.metrics.at("val_x"), 1);
  ListLoader nothing({empty, empty});
  EXPECT_THAT(what_a_fit_throws([&] { Trainer(options).fit(task, nothing); }),
              HasSubstr("none of the 2 batches of epoch 0 has a sample"));
  EXPECT_THAT(what_a_fit_throws([&] { Trainer(options).validate(task, nothing); }),
              HasSubstr("none of the 2 batches to evaluate has a sample"));
}

TEST(FitRun, NoTrainingBatchesAreNoTraining) {
  const auto diary = std::make_shared<Diary>();
  OneWeight task;
  ListLoader train = loader_of({1}), val = loader_of({1});
  const FitResult result = Trainer({.device = "cpu",
                                    .max_epochs = -1,
                                    .max_steps = 10,
                                    .limit_train_batches = 0,
                                    .num_sanity_val_steps = 0,
                                    .callbacks = {diary}})
                               .fit(task, train, &val);
  EXPECT_EQ(result.steps, 0);
  EXPECT_EQ(diary->count("epoch 0") + diary->count("val"), 0);
}

TEST(FitRun, FastDevRunForgetsWhatOneBatchCannotDo) {
  for (const BatchLimit interval : {BatchLimit(0.5), BatchLimit(4)}) {
    OneWeight task;
    ListLoader train = loader_of({1, 2, 3, 4, 5}), val = loader_of({1, 2, 3});
    const auto diary = std::make_shared<Diary>();
    EXPECT_EQ(Trainer({.device = "cpu",
                       .fast_dev_run = 2,
                       .val_check_interval = interval,
                       .check_val_every_n_epoch = 7,
                       .callbacks = {diary}})
                  .fit(task, train, &val)
                  .steps,
              2);
    EXPECT_EQ(diary->count("v1"), 1);
    EXPECT_EQ(diary->count("v2"), 0);
  }
  EXPECT_TRUE(Trainer({.device = "cpu", .overfit_batches = 2, .fast_dev_run = 1})
                  .options()
                  .overfit_batches.is_none());
  EXPECT_THAT(error_of([] { Trainer trainer({.fast_dev_run = -1}); }), HasSubstr("fast_dev_run"));
}

TEST(FitRun, AShareOfAShortEpochIsOneBatch) {
  OneWeight task;
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  const auto diary = std::make_shared<Diary>();
  Trainer({.device = "cpu", .val_check_interval = 0.25, .num_sanity_val_steps = 0, .callbacks = {diary}})
      .fit(task, train, &val);
  EXPECT_EQ(diary->count("val"), 2);
}

/// On the CPU a step reads its loss for the mean. Nothing reads whether a fused optimizer skipped the step.
TEST(FitRun, AFusedOptimizersStepReadsNoMoreInAnyModeThanInFloat32) {
  struct Fused : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<FusedSGD>(net->parameters(), SGDOptions(0.5))}};
    }
    at::Tensor training_step(const Batch& batch, int64_t /*index*/) override {
      return net->forward(batch.data).sum();
    }
  };
  struct Counts final : Callback {
    void on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& batch) override {
      if (batch.batch_index == 1) reads.emplace();  // the first step makes the optimizer's state
      if (batch.batch_index == 3) count = reads->count();
    }
    std::optional<HostReads> reads;
    int count = -1;
  };
  const auto reads_of = [](const std::string& mode) {
    Fused task;
    ListLoader train = loader_of({1, 2, 3, 4, 5});
    const auto counts = std::make_shared<Counts>();
    PrecisionOptions options;
    if (mode.starts_with("int8")) options.llm_int8_threshold = 0;  // outliers are looked for on the host
    Trainer({.precision = mode,
             .precision_options = options,
             .device = "cpu",
             .gradient_clip_val = 1,
             .callbacks = {counts}})
        .fit(task, train);
    return counts->count;
  };
  const int wanted = reads_of("32-true");
  EXPECT_GE(wanted, 2);
  for (const Mode& mode : modes()) {
    if (mode.traits.frozen_weights) continue;  // the task has no other parameter
    EXPECT_LE(reads_of(mode.name), wanted) << mode.name;
  }
}

TEST(FitRun, AccumulatesByEpoch) {
  const auto run =
      fit({.max_epochs = 3, .accumulate_grad_batches = std::map<int64_t, int64_t>{{1, 2}, {2, 4}}});
  EXPECT_EQ(run->result.steps, 4 + 2 + 1);
  EXPECT_THAT(refusal({.accumulate_grad_batches = std::map<int64_t, int64_t>{{0, 0}}}),
              HasSubstr("accumulate_grad_batches={0: 0} has {0: 0}"));
  EXPECT_THAT(refusal({.accumulate_grad_batches = std::map<int64_t, int64_t>{{-1, 2}}}),
              HasSubstr("{-1: 2}"));
}

TEST(FitRun, NF01_DetectsAnomaliesWhileItLastsAndNoLonger) {
  struct Roots : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t) override {
      return (net->weight * batch.data - 1).sqrt().sum();
    }
  } task;
  ListLoader train = loader_of({0});
  Trainer({.device = "cpu"}).fit(task, train);  // the loss is nan, and nothing reports it
  task.net->weight.data().fill_(0);
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu", .detect_anomaly = true}).fit(task, train); }),
              HasSubstr("Function 'SqrtBackward0' returned nan values"));
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

TEST(FitRun, SchedulesAdvanceEveryFrequency) {
  struct Scheduled : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      auto configs = OneWeight::configure_optimizers();
      configs[0].frequency = frequency;
      return configs;
    }
    int64_t frequency = 2;
  } task;
  task.with_schedule = true;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({0, 0, 0, 0, 0, 0});
  Trainer trainer({.device = "cpu", .callbacks = {recorder}});
  trainer.fit(task, train);
  // libtorch's StepLR takes its first step() as step 0.
  EXPECT_EQ(recorder->rate, 0.25);
  task.frequency = 0;
  EXPECT_THAT(error_of([&] { trainer.fit(task, train); }), HasSubstr("frequency 0"));
}

TEST(FitRun, APlateauLowersTheRateWhenItsMetricStandsStill) {
  struct Flat : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 1.0);
      OptimizerConfig config{optimizer};
      config.plateau = std::make_shared<torch::optim::ReduceLROnPlateauScheduler>(
          *optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, /*patience=*/0);
      config.monitor = monitor;
      return {config};
    }
    std::string monitor = "val_x";
  } task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({0}), val = loader_of({5});
  Trainer trainer({.device = "cpu", .max_epochs = 4, .callbacks = {recorder}});
  trainer.fit(task, train, &val);
  EXPECT_EQ(trainer.optimizer()->param_groups()[0].options().get_lr(), 0.125) << "three epochs no better";
  task.monitor = "val_y";
  EXPECT_THAT(error_of([&] { trainer.fit(task, train, &val); }),
              HasSubstr("monitors 'val_y', which was not logged; logged were train_loss, val_x"));
}

TEST(FitRun, FastDevRunReplacesEveryLength) {
  const Trainer trainer({.device = "cpu",
                         .max_epochs = 7,
                         .max_steps = 9,
                         .min_epochs = 2,
                         .min_steps = 2,
                         .fast_dev_run = 3,
                         .val_check_interval = 2,
                         .check_val_every_n_epoch = 5,
                         .accumulate_grad_batches = 4});
  const TrainerOptions& options = trainer.options();
  EXPECT_EQ(options.max_epochs, 1);
  EXPECT_EQ(options.max_steps, 3);
  EXPECT_EQ(options.min_epochs, 0);
  EXPECT_EQ(options.min_steps, 0);
  EXPECT_EQ(options.num_sanity_val_steps, 0);
  EXPECT_TRUE(options.accumulate_grad_batches.is_always(1));
  EXPECT_TRUE(options.val_check_interval.is_all());
  EXPECT_EQ(options.check_val_every_n_epoch, 1);
}

TEST(FitRun, ATrainerThatHasNotRunHasNothing) {
  const Trainer trainer({.device = "cpu"});
  EXPECT_EQ(trainer.stopped_by(), "");
  EXPECT_EQ(trainer.interrupted_by(), 0);
  EXPECT_EQ(trainer.module(), nullptr);
  EXPECT_EQ(trainer.optimizer(), nullptr);
  EXPECT_TRUE(trainer.callback_metrics().empty());
}

TEST(FitRun, AFewBatchesMayAllBeWithoutASample) {
  const Batch empty{torch::zeros({0, 1}), torch::zeros({0}, at::kLong), {}};
  const Batch one{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}};
  ListLoader data({empty, one});
  OneWeight task;
  Trainer trainer({.device = "cpu", .limit_train_batches = 1, .limit_val_batches = 1});
  EXPECT_EQ(trainer.fit(task, data).epochs, 1) << "the loader has others";
  EXPECT_TRUE(trainer.validate(task, data).empty());
}

}  // namespace
}  // namespace mantissa::fit_run_test
