// Tests how a run begins and ends, whatever fails.
#include <exception>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::trainer_run_test {
namespace {

using testing::HasSubstr;

/// Counts its teardowns, and may fail in one.
struct CountsTeardowns final : Callback {
  void teardown(Trainer&, Stage) override {
    ++teardowns;
    if (fails) throw std::runtime_error("teardown failed");
  }
  void on_exception(Trainer&, const std::exception_ptr&) override { ++exceptions; }
  int teardowns = 0, exceptions = 0;
  bool fails = false;
};

struct StrategyThatCounts final : Strategy {
  void teardown() override { ++teardowns; }
  int teardowns = 0;
};

TEST(TrainerRun, EveryTeardownRunsOnceAlsoIfOneThrows) {
  for (const bool training_fails : {false, true}) {
    const auto bad = std::make_shared<CountsTeardowns>(), good = std::make_shared<CountsTeardowns>();
    const auto strategy = std::make_shared<StrategyThatCounts>();
    const auto logger = std::make_shared<RecordingLogger>();
    bad->fails = true;
    OneWeight task;
    if (training_fails) task.throws_at = 1;
    ListLoader train = loader_of({1});
    Trainer trainer({.device = "cpu", .strategy = strategy, .callbacks = {bad, good}, .loggers = {logger}});
    testing::internal::CaptureStderr();
    EXPECT_THAT([&] { trainer.fit(task, train); },
                testing::ThrowsMessage<std::runtime_error>(
                    HasSubstr(training_fails ? "training_step failed" : "teardown failed")));
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_EQ(warnings.find("teardown failed") != std::string::npos, training_fails);
    EXPECT_EQ(bad->teardowns, 1);
    EXPECT_EQ(good->teardowns, 1);
    EXPECT_EQ(good->exceptions, training_fails ? 1 : 0);
    EXPECT_EQ(strategy->teardowns, 1);
    EXPECT_EQ(logger->lines.back(), "failed");
  }
}

TEST(TrainerRun, AnExceptionInABatchIsNoPlaceToResumeFrom) {
  struct Throws final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch&) override { fail(/*in_batch=*/true); }
    void on_validation_end(Trainer&) override { fail(/*in_batch=*/false); }
    void on_exception(Trainer& trainer, const std::exception_ptr&) override {
      resumes_exactly = trainer.resumes_exactly();
    }
    void fail(bool in_batch) const {
      if (throws_in_batch == in_batch) throw std::runtime_error("callback failed");
    }
    bool throws_in_batch = false;
    std::optional<bool> resumes_exactly;
  };
  for (const bool in_batch : {true, false}) {
    OneWeight task;
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    const auto throws = std::make_shared<Throws>();
    throws->throws_in_batch = in_batch;
    Trainer trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {throws}});
    EXPECT_THROW(trainer.fit(task, train, &val), std::runtime_error);
    EXPECT_EQ(throws->resumes_exactly, std::optional(!in_batch));
  }
}

TEST(TrainerRun, ARefusedFitLeavesTheProgressOfTheLastOne) {
  OneWeight own;
  Trainer trainer({.device = "cpu"});
  ListLoader train = loader_of({1, 2}), none = loader_of({});
  trainer.fit(own, train);
  struct Nested final : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      if (refused) refused(*this);
      return OneWeight::training_step(batch, index);
    }
    std::function<void(Task&)> refused;
  } busy;
  std::string error;
  busy.refused = [&](Task& task) { error = error_of([&] { trainer.fit(task, train); }); };
  ListLoader one = loader_of({1});
  Trainer({.device = "cpu"}).fit(busy, one);
  EXPECT_THAT(error, HasSubstr("the task is in another Trainer's run"));
  EXPECT_THAT(error_of([&] { trainer.fit(own, none); }), HasSubstr("the training loader has no batches"));
  EXPECT_EQ(trainer.progress().steps, 2);
  EXPECT_NE(trainer.optimizer(), nullptr);
}

TEST(TrainerRun, AFailedSanityCheckIsOver) {
  struct Fails final : OneWeight {
    void validation_step(const Batch&, int64_t) override { throw std::runtime_error("no validation"); }
  } task;
  ListLoader train = loader_of({1}), val = loader_of({1});
  Trainer trainer({.device = "cpu"});
  EXPECT_THROW(trainer.fit(task, train, &val), std::runtime_error);
  EXPECT_FALSE(trainer.is_sanity_checking());
}

TEST(TrainerRun, NothingCanBeLoggedAfterIt) {
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer trainer({.device = "cpu", .loggers = {std::make_shared<RecordingLogger>()}});
  trainer.fit(task, train);
  EXPECT_THAT(error_of([&] { trainer.log_metrics({{"x", 1.0}}); }), HasSubstr("no run is active"));
}

class FailedRun : public InFolder {};

TEST_F(FailedRun, OnAFewBatchesIsSavedWithItsLoader) {
  OneWeight task;
  const auto saver =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_, .filename = "{step}"});
  struct Throws final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step == 3) throw std::runtime_error("a user's error");
    }
  };
  TrainerOptions options{.device = "cpu", .max_epochs = 3, .overfit_batches = 2};
  options.callbacks = {std::make_shared<Throws>(), saver};
  ListLoader train = loader_of({1, 2, 3});
  EXPECT_THAT([&] { Trainer(options).fit(task, train); },
              testing::ThrowsMessage<std::runtime_error>(HasSubstr("a user's error")));
  EXPECT_EQ(saver->last_model_path().filename(), "3");
}

}  // namespace
}  // namespace mantissa::trainer_run_test
