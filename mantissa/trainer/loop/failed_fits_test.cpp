// Tests what a fit that throws reports, closes and leaves behind.
#include <exception>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trainer/loop/diary_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::failed_fits_test {
namespace {

using testing::HasSubstr;

TEST(FailedFits, WhatIsThrownNeedNotBeAnException) {
  struct Throws final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch&) override { throw 3; }
    void on_exception(Trainer&, const std::exception_ptr&) override { throw 4; }
  };
  const auto diary = std::make_shared<Diary>();
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer trainer({.device = "cpu", .callbacks = {std::make_shared<Throws>(), diary}});
  EXPECT_THROW(trainer.fit(task, train), int);
  EXPECT_EQ(diary->count("exception"), 1);
  EXPECT_EQ(diary->count("teardown"), 1);
}

TEST(FailedFits, ACheckpointOfAFitThatFailedEarlyIsNotThatOfTheOneBefore) {
  struct Asks final : Callback {
    void on_exception(Trainer& trainer, const std::exception_ptr&) override {
      said = error_of([&] { trainer.checkpoint(); });
    }
    std::string said;
  };
  struct CannotBegin final : OneWeight {
    void configure_model() override { TORCH_CHECK(false, "no model"); }
  };
  const auto asks = std::make_shared<Asks>();
  Trainer trainer({.device = "cpu", .callbacks = {asks}});
  ListLoader train = loader_of({1});
  {
    OneWeight gone;
    trainer.fit(gone, train);
  }
  CannotBegin task;
  EXPECT_THAT(error_of([&] { trainer.fit(task, train); }), HasSubstr("no model"));
  EXPECT_THAT(asks->said, HasSubstr("no fit is running"));
}

TEST(FailedFits, AThrowingCallbackEndsTheRunAndEveryOtherHearsOfIt) {
  OneWeight task;
  const auto bad = std::make_shared<Diary>(), good = std::make_shared<Diary>();
  bad->throws_at = 2;
  ListLoader train = loader_of({1, 2, 3});
  Trainer trainer({.device = "cpu", .callbacks = {bad, good}});
  EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
  EXPECT_EQ(good->count("exception"), 1) << "though the one before threw again";
  EXPECT_EQ(good->lines.back(), "teardown");
  EXPECT_EQ(trainer.progress().steps, 2);
  EXPECT_DOUBLE_EQ(task.weight(), -3) << "the step that was taken stays";
  bad->throws_at = -1;
  EXPECT_EQ(trainer.fit(task, train).steps, 3) << "and the trainer can be used again";
}

TEST(FailedFits, APrecisionThatFailsAtTheEndHidesNoError) {
  struct Fails final : Precision {
    Fails() : Precision("fails") {}
    void teardown() override { throw std::runtime_error("teardown failed"); }
  };
  OneWeight task;
  task.throws_at = 2;
  ListLoader train = loader_of({1, 2});
  const auto recording = std::make_shared<RecordingLogger>();
  TrainerOptions options;
  options.precision_plugin = std::make_shared<Fails>();
  options.device = "cpu";
  options.loggers = {recording};
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { Trainer(options).fit(task, train); },
              testing::ThrowsMessage<std::runtime_error>(HasSubstr("training_step failed")));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the precision failed while the run ended"));
  EXPECT_EQ(recording->lines.back(), "failed") << "the loggers are closed all the same";
}

TEST(FailedFits, RefusesARunInsideARun) {
  struct Nested : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      ListLoader val = loader_of({1});
      trainer().validate(*this, val);
      return OneWeight::training_step(batch, index);
    }
  } task;
  ListLoader train = loader_of({1});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu"}).fit(task, train); }),
              HasSubstr("another run is active"));
}

}  // namespace
}  // namespace mantissa::failed_fits_test
