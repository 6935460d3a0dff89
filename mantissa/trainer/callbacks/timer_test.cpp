#include "mantissa/trainer/callbacks/timer.h"

#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <utility>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::timer_test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kBatch{20};

/// Each training or prediction batch takes at least kBatch, and each validation batch three times that.
struct Slow : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    std::this_thread::sleep_for(kBatch);
    return OneWeight::training_step(batch, index);
  }
  void validation_step(const Batch& batch, int64_t index) override {
    std::this_thread::sleep_for(3 * kBatch);
    OneWeight::validation_step(batch, index);
  }
  c10::IValue predict_step(const Batch& batch, int64_t) override {
    std::this_thread::sleep_for(kBatch);
    return batch.data;
  }
};

FitResult fit(const std::shared_ptr<Timer>& timer, TrainerOptions run = {}, float throws_at = -kInf,
              const std::filesystem::path& from = {}) {
  Slow task;
  task.throws_at = throws_at;
  ListLoader train = loader_of({1, 2, 3, 4});
  run.device = "cpu";
  run.callbacks.insert(run.callbacks.begin(), timer);
  return Trainer(run).fit(task, train, nullptr, from);
}

TEST(Timer, EndsTrainingWhenItsTimeIsUp) {
  const auto timer = std::make_shared<Timer>(TimerOptions{.duration = kBatch, .verbose = true});
  testing::internal::CaptureStderr();
  const FitResult result = fit(timer, {.max_epochs = 9, .min_steps = 3});
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.steps, 3) << "the time is up after one, and min_steps goes before";
  EXPECT_THAT(result.stopped_by, HasSubstr("Timer: the time limit of 0.020 s is reached, after 0."));
  EXPECT_EQ(output, result.stopped_by + "\n") << "once";
  EXPECT_LE(timer->time_remaining()->count(), 0);
}

TEST(Timer, ChecksWhereAnEpochEndsIfConfigured) {
  const auto timer =
      std::make_shared<Timer>(TimerOptions{.duration = kBatch, .interval = "epoch", .verbose = false});
  testing::internal::CaptureStderr();
  EXPECT_EQ(fit(timer, {.max_epochs = 9}).steps, 4);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Timer, MeasuresEachStage) {
  const auto timer = std::make_shared<Timer>();
  EXPECT_EQ(timer->time_elapsed().count(), 0);
  Trainer trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {timer}});
  Slow task;
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  const FitResult result = trainer.fit(task, train, &val);
  EXPECT_GE(timer->time_elapsed(), 5 * kBatch) << "with the validation inside";
  EXPECT_LE(timer->time_elapsed().count(), result.seconds);
  EXPECT_GE(timer->time_elapsed(Stage::kValidate), 3 * kBatch);
  EXPECT_LE(timer->time_elapsed(Stage::kValidate), timer->time_elapsed() - 2 * kBatch);
  EXPECT_EQ(timer->time_elapsed(Stage::kTest).count(), 0);
  const Timer::Seconds fitted = timer->time_elapsed();
  trainer.test(task, val);
  EXPECT_GE(timer->time_elapsed(Stage::kTest), 3 * kBatch);
  trainer.predict(task, val);
  EXPECT_GE(timer->time_elapsed(Stage::kPredict), kBatch);
  EXPECT_EQ(timer->time_elapsed(), fitted) << "none of them trains";
  EXPECT_EQ(timer->time_remaining(), std::nullopt);
}

TEST(Timer, WhatOtherCallbacksDoAfterTrainingIsNotMeasured) {
  struct Sleeps final : Callback {
    explicit Sleeps(std::shared_ptr<Timer> measured) : timer(std::move(measured)) {}
    void on_train_end(Trainer&) override {
      const Timer::Seconds before = timer->time_elapsed();
      std::this_thread::sleep_for(kBatch);
      EXPECT_EQ(timer->time_elapsed(), before);
    }
    std::shared_ptr<Timer> timer;
  };
  const auto timer = std::make_shared<Timer>();
  fit(timer, {.max_steps = 1, .callbacks = {std::make_shared<Sleeps>(timer)}});
  EXPECT_GE(timer->time_elapsed(), kBatch);
}

TEST(Timer, StopsWhereAnExceptionEndsTheRun) {
  const auto timer = std::make_shared<Timer>();
  EXPECT_THROW(fit(timer, {}, /*throws_at=*/2), std::runtime_error);
  const Timer::Seconds elapsed = timer->time_elapsed();
  EXPECT_GE(elapsed, 2 * kBatch);
  std::this_thread::sleep_for(kBatch);
  EXPECT_EQ(timer->time_elapsed(), elapsed);
  fit(timer, {.max_steps = 1});
  EXPECT_GE(timer->time_elapsed(), kBatch);
  EXPECT_EQ(timer->time_elapsed(), Timer::Seconds(timer->time_elapsed())) << "stands still";
}

TEST(Timer, RefusesOptionsOutOfRange) {
  EXPECT_THAT(error_of([] { Timer timer({.duration = milliseconds(0)}); }), HasSubstr("duration=0 ms"));
  EXPECT_THAT(error_of([] { Timer timer({.interval = "batch"}); }), HasSubstr("unknown interval 'batch'"));
}

class TimerFiles : public InFolder {};

TEST_F(TimerFiles, AResumedRunCountsTheTimeBefore) {
  const auto checkpoints = [&] {
    return std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / "run"});
  };
  const auto first = std::make_shared<Timer>();
  fit(first, {.max_steps = 3, .callbacks = {checkpoints()}});
  EXPECT_GE(first->time_elapsed(), 3 * kBatch);
  const auto second = std::make_shared<Timer>();
  EXPECT_EQ(fit(second, {.callbacks = {checkpoints()}}, -kInf, folder_ / "run").steps, 4);
  // The first timer's total is no bound, because it includes the writing of its checkpoint.
  EXPECT_GE(second->time_elapsed(), 4 * kBatch);
  // A run whose time is already over takes no further step.
  const auto over = std::make_shared<Timer>(TimerOptions{.duration = 3 * kBatch, .verbose = false});
  const FitResult result = fit(over, {.max_epochs = 9}, -kInf, folder_ / "run");
  EXPECT_EQ(result.steps, 4);
  EXPECT_THAT(result.stopped_by, HasSubstr("Timer: the time limit"));
  // Another fit begins at 0; a continued count would be larger than before.
  const auto before = second->time_elapsed();
  fit(second, {.max_steps = 1});
  EXPECT_LT(second->time_elapsed(), before + kBatch);
}

}  // namespace
}  // namespace mantissa::timer_test
