#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/trainer/loop/decisions_internal.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::decisions_test {
namespace {

using testing::HasSubstr;

/// A fit with 4 batches per epoch, each of which is a step.
struct Fit {
  explicit Fit(TrainerOptions given = {}) : options(std::move(given)) { decisions.set_up(4, true); }
  void take(int batches) {
    for (int i = 0; i < batches; ++i) {
      progress.count_batch();
      progress.add_step(StepResult());
    }
  }
  Decision between_batches(bool may_end = true) {
    return decisions.decide(
        {.whole_epochs = progress.now().epoch, .has_next = progress.now().batches < 4, .may_end = may_end});
  }
  Decision between_epochs(int64_t whole) {
    return decisions.decide({.whole_epochs = whole, .is_between_epochs = true});
  }

  TrainerOptions options;
  Progress progress;
  StopRequest stop;
  Strategy alone;
  Decisions decisions{options, progress, stop, alone};
};

TEST(Decisions, TrainingEndsAfterItsEpochs) {
  Fit fit({.max_epochs = 2});
  EXPECT_FALSE(fit.between_epochs(1).end);
  EXPECT_TRUE(fit.between_epochs(2).end);
}

TEST(Decisions, TrainingEndsAfterItsStepsAndNotInsideAWindow) {
  Fit fit({.max_epochs = -1, .max_steps = 3});
  fit.take(2);
  EXPECT_FALSE(fit.between_batches().end);
  fit.take(1);
  EXPECT_FALSE(fit.between_batches(/*may_end=*/false).end);
  EXPECT_TRUE(fit.between_batches().end);
}

TEST(Decisions, AStopWaitsForTheLeastNumberOfStepsAndEpochs) {
  Fit fit({.max_epochs = 9, .min_epochs = 1, .min_steps = 3});
  fit.take(2);
  fit.stop.request("enough");
  EXPECT_FALSE(fit.between_batches().end);
  EXPECT_FALSE(fit.between_epochs(1).end) << "too few steps";
  fit.take(1);
  EXPECT_FALSE(fit.between_batches().end) << "too few epochs";
  EXPECT_TRUE(fit.between_epochs(1).end);
}

TEST(Decisions, TimeEndsTrainingWhateverTheLeastNumberOfSteps) {
  Fit fit({.max_epochs = 9, .min_steps = 100, .max_time = std::chrono::milliseconds(0)});
  EXPECT_TRUE(fit.between_batches().end);
}

TEST(Decisions, ASignalEndsTrainingAndNothingIsValidated) {
  const InterruptScope scope;
  Fit fit({.max_epochs = 9});
  fit.take(4);
  EXPECT_TRUE(fit.between_batches().validate);
  std::raise(SIGTERM);
  EXPECT_FALSE(fit.between_batches(/*may_end=*/false).end) << "inside a window";
  const Decision decision = fit.between_batches();
  EXPECT_TRUE(decision.end);
  EXPECT_FALSE(decision.validate);
  EXPECT_EQ(fit.decisions.interrupted_by(), SIGTERM);
}

TEST(Decisions, ValidatesEveryNBatchesOnce) {
  Fit fit({.max_epochs = 9, .val_check_interval = 2});
  std::vector<bool> due;
  for (int i = 0; i < 4; ++i) {
    fit.take(1);
    due.push_back(fit.between_batches().validate);
  }
  EXPECT_EQ(due, (std::vector<bool>{false, true, false, true}));
  fit.progress.end_validation();
  EXPECT_FALSE(fit.between_batches().validate);
}

TEST(Decisions, WhatTheRunEndsOnIsValidatedAfterItsEpochAndOnce) {
  Fit fit({.max_epochs = -1, .max_steps = 2, .val_check_interval = 2});
  fit.take(2);
  EXPECT_FALSE(fit.between_batches().validate) << "the epoch ends here, and validates";
  EXPECT_TRUE(fit.between_epochs(0).validate);
  fit.progress.end_validation();
  EXPECT_FALSE(fit.between_epochs(0).validate);
}

TEST(Decisions, NothingIsValidatedWithoutALoader) {
  Fit fit({.max_epochs = 1});
  fit.decisions.set_up(4, false);
  fit.take(4);
  EXPECT_FALSE(fit.between_batches().validate);
  EXPECT_FALSE(fit.between_epochs(1).validate);
}

/// Another process, whose numbers are given in the order in which they are exchanged.
struct WithAnother final : Strategy {
  explicit WithAnother(std::vector<int64_t> its) : numbers(std::move(its)) {}
  int64_t world_size() const override { return 2; }
  at::Tensor all_reduce(at::Tensor values, ReduceOp) override {
    const int64_t its = numbers.at(exchanges++);
    return at::max(values, at::tensor({its, -its}, at::kLong));
  }
  std::vector<int64_t> numbers;
  size_t exchanges = 0;
};

TEST(Decisions, AValidationLoaderThatOnlyOneProcessHasIsRefused) {
  const TrainerOptions options;
  Progress progress;
  StopRequest stop;
  for (const bool is_here : {true, false}) {
    WithAnother strategy({/*callbacks*/ 0, /*batches*/ 4, /*validation loaders*/ is_here ? 0 : 1});
    Decisions decisions(options, progress, stop, strategy);
    EXPECT_THAT(error_of([&] { decisions.set_up(4, is_here); }),
                HasSubstr("one process has 0 validation loaders and another 1; give a validation loader"));
  }
}

}  // namespace
}  // namespace mantissa::decisions_test
