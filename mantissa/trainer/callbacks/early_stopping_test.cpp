#include "mantissa/trainer/callbacks/early_stopping.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::early_stopping_test {
namespace {

using testing::HasSubstr;

using Reason = EarlyStoppingReason;

/// Logs each epoch's value in its validation, and with `by_batch` the batch's value.
struct Logs : OneWeight {
  void validation_step(const Batch& batch, int64_t index) override {
    OneWeight::validation_step(batch, index);
    const FitProgress& at = trainer().progress();
    log("m", values.at(static_cast<size_t>(by_batch ? at.total_batches : at.epoch)));
  }
  std::vector<double> values;
  bool by_batch = false;
};

struct Fit {
  EarlyStoppingOptions options;
  std::vector<double> values;
  TrainerOptions run = {};
  bool by_batch = false, comes_last = false;
  float raise_at = -kInf;
  std::vector<float> val = {9};

  std::shared_ptr<EarlyStopping> stopping = nullptr;
  FitResult result = {};

  Fit& go(const std::filesystem::path& from = {}) {
    Logs task;
    task.values = values;
    task.by_batch = by_batch;
    task.raise_at = raise_at;
    ListLoader train = loader_of({1, 2}), validation = loader_of(val);
    run.device = "cpu";
    if (run.max_epochs == 1) run.max_epochs = static_cast<int64_t>(values.size());
    stopping = std::make_shared<EarlyStopping>(options);
    run.callbacks.insert(comes_last ? run.callbacks.end() : run.callbacks.begin(), stopping);
    result = Trainer(run).fit(task, train, val.empty() ? nullptr : &validation, from);
    return *this;
  }
};

TEST(EarlyStopping, EndsAfterNChecksWithoutImprovement) {
  Fit fit{.options = {.monitor = "m"}, .values = {5, 4, 4, 4.5, 4, 3}};
  fit.go();
  EXPECT_EQ(fit.result.epochs, 5);
  EXPECT_EQ(fit.result.stopped_by, "EarlyStopping: m has not improved in 3 checks; the best was 4");
  EXPECT_EQ(fit.stopping->stopping_reason_message(), fit.result.stopped_by);
  EXPECT_EQ(fit.stopping->stopping_reason(), Reason::kPatienceExhausted);
  EXPECT_EQ(fit.stopping->stopped_epoch(), 4);
  EXPECT_EQ(fit.stopping->wait_count(), 3);
  EXPECT_EQ(fit.stopping->best_score(), 4);
}

TEST(EarlyStopping, NF03_EveryReasonAtItsEpoch) {
  const double inf = HUGE_VAL;
  struct Case {
    EarlyStoppingOptions options;
    std::vector<double> values;
    int64_t stopped_epoch;  // -1: not stopped
    Reason reason;
    double best;
  };
  const std::vector<Case> cases{
      {{.patience = 2}, {3, 2, 1, 0}, -1, Reason::kNotStopped, 0},
      {{.patience = 2, .mode = "max"}, {1, 2, 2, 1, 9}, 3, Reason::kPatienceExhausted, 2},
      {{.patience = 1}, {1, 1}, 1, Reason::kPatienceExhausted, 1},
      {{.patience = 0}, {2, 1, 3}, 2, Reason::kPatienceExhausted, 1},
      // An improvement by exactly min_delta does not count: 5 - 1 is not below 4.
      {{.min_delta = 1, .patience = 2}, {5, 4, 3.875, 3, 3}, 4, Reason::kPatienceExhausted, 3.875},
      {{.min_delta = 1, .patience = 2, .mode = "max"}, {0, 1, 1}, 2, Reason::kPatienceExhausted, 0},
      {{}, {1, NAN, 0}, 1, Reason::kNonFiniteMetric, 1},
      {{}, {inf, 0}, 0, Reason::kNonFiniteMetric, inf},
      {{.mode = "max"}, {-inf}, 0, Reason::kNonFiniteMetric, -inf},
      {{.patience = 2, .check_finite = false}, {NAN, 1, NAN, 0, NAN, NAN}, 5, Reason::kPatienceExhausted, 0},
      {{.patience = 2, .mode = "max", .check_finite = false},
       {1, inf, 2, 3},
       3,
       Reason::kPatienceExhausted,
       inf},
      {{.stopping_threshold = 1}, {2, 1, 0.5, 0}, 2, Reason::kStoppingThreshold, 1},
      {{.mode = "max", .stopping_threshold = 1}, {0, 1, 1.5}, 2, Reason::kStoppingThreshold, 1},
      {{.divergence_threshold = 3}, {2, 3, 3.5}, 2, Reason::kDivergenceThreshold, 2},
      {{.mode = "max", .divergence_threshold = 3}, {4, 3, 2.5}, 2, Reason::kDivergenceThreshold, 4},
  };
  for (const Case& c : cases) {
    Fit fit{.options = c.options, .values = c.values};
    fit.options.monitor = "m";
    fit.go();
    const std::string what =
        fit.stopping->stopping_reason_message() + " of " + std::to_string(&c - &cases[0]);
    EXPECT_EQ(fit.stopping->stopped_epoch().value_or(-1), c.stopped_epoch) << what;
    EXPECT_EQ(fit.stopping->stopping_reason(), c.reason) << what;
    EXPECT_EQ(fit.stopping->best_score(), c.best) << what;
    EXPECT_EQ(fit.result.stopped_by.empty(), c.reason == Reason::kNotStopped) << what;
  }
}

TEST(EarlyStopping, ANanIsNamedWithoutItsSign) {
  EXPECT_EQ((Fit{.options = {.monitor = "m"}, .values = {1, -NAN}}.go().result.stopped_by),
            "EarlyStopping: m is nan; the best was 1");
}

TEST(EarlyStopping, TheFirstCheckHasNoBestToName) {
  EXPECT_EQ((Fit{.options = {.monitor = "m"}, .values = {NAN}}.go().result.stopped_by),
            "EarlyStopping: m is nan");
}

TEST(EarlyStopping, AMonitorThatWasNotLoggedIsAnErrorUnlessConfiguredOtherwise) {
  EXPECT_THAT(
      error_of([] { Fit{.options = {.monitor = "val_y"}, .values = {1}}.go(); }),
      HasSubstr("EarlyStopping: the monitor 'val_y' was not logged; logged were m, train_loss, val_x; "
                "did you mean 'val_x'?"));
  EXPECT_EQ((Fit{.options = {.monitor = "val_y", .strict = false}, .values = {1, 2}}.go().result.epochs), 2);
}

TEST(EarlyStopping, WatchesTrainingWithoutValidation) {
  // The loss is 0 in the first step, and falls from then on.
  Fit fit{.options = {.monitor = "train_loss", .patience = 1, .mode = "max"}, .values = {0, 0, 0}, .val = {}};
  EXPECT_EQ(fit.go().result.epochs, 2);
}

TEST(EarlyStopping, LooksAfterEachValidationWhereEpochsAreNotValidatedOnce) {
  // Validations after 1, 2 and 3 batches; the stop of the third ends the run.
  Fit fit{.options = {.monitor = "m", .patience = 2},
          .values = {0, 5, 5, 5, 5, 5},
          .run = {.val_check_interval = 1},
          .by_batch = true};
  fit.go();
  EXPECT_EQ(fit.result.steps, 3);
  EXPECT_EQ(fit.stopping->stopped_epoch(), 1);
  EXPECT_EQ(fit.stopping->wait_count(), 2);
  // Each validation, in every other epoch, is a check; the epochs in between are not.
  Fit rare{.options = {.monitor = "m", .patience = 1},
           .values = {1, 2, 3, 1.5, 0, 0},
           .run = {.check_val_every_n_epoch = 2}};
  EXPECT_EQ(rare.go().result.epochs, 6);
  // Checks the end of each epoch, but only if there is a new value.
  rare = {.options = {.monitor = "m", .patience = 1, .strict = false, .check_on_train_epoch_end = true},
          .values = {1, 2, 3, 1.5, 0, 0},
          .run = {.check_val_every_n_epoch = 2}};
  EXPECT_EQ(rare.go().result.epochs, 6);
}

TEST(EarlyStopping, WaitsForMinEpochs) {
  Fit fit{.options = {.monitor = "m", .patience = 1}, .values = {1, 1, 0, 0, 0}, .run = {.min_epochs = 4}};
  fit.go();
  EXPECT_EQ(fit.result.epochs, 4);
  EXPECT_EQ(fit.stopping->stopped_epoch(), 1);
  EXPECT_THAT(fit.result.stopped_by, HasSubstr("has not improved in 1 check; the best was 1"));
}

TEST(EarlyStopping, WhatASignalLeavesHalfDoneIsNoCheck) {
  // The signal comes inside the first epoch, in its last batch, or in its validation, whose other batch is
  // then left out.
  for (const auto& [raise_at, val] : {std::pair{1.F, std::vector<float>{9}}, {2.F, {9}}, {8.F, {8, 9}}}) {
    Fit fit{.options = {.monitor = "m", .patience = 1}, .values = {1, 2}, .raise_at = raise_at, .val = val};
    fit.run.num_sanity_val_steps = 0;
    fit.go();
    EXPECT_NE(fit.result.interrupted_by, 0);
    EXPECT_EQ(fit.result.stopped_by, "");
    EXPECT_EQ(fit.stopping->best_score(), HUGE_VAL);
  }
}

TEST(EarlyStopping, LeavesFastDevRunAndValidateAlone) {
  EXPECT_EQ(
      (Fit{.options = {.monitor = "none"}, .values = {1}, .run = {.fast_dev_run = true}}.go().result.epochs),
      1);
  Trainer trainer({.device = "cpu",
                   .val_check_interval = 0.5,
                   .callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "none"})}});
  Logs task;
  task.values = {1};
  ListLoader val = loader_of({9});
  EXPECT_EQ(trainer.validate(task, val).at("m"), 1);
}

TEST(EarlyStopping, RefusesOptionsOutOfRange) {
  const auto error = [](const EarlyStoppingOptions& options) {
    return error_of([&] { EarlyStopping callback(options); });
  };
  EXPECT_THAT(error({}), HasSubstr("no monitor"));
  EXPECT_THAT(error({.monitor = "m", .mode = "lowest"}), HasSubstr("choose min or max"));
  EXPECT_THAT(error({.monitor = "m", .patience = -1}), HasSubstr("patience=-1"));
  EXPECT_THAT(error({.monitor = "m", .min_delta = NAN}), HasSubstr("min_delta=nan"));
}

class EarlyStoppingFiles : public InFolder {
 protected:
  /// Fits `values` with two callbacks that watch them and differ in their state keys only by the mode.
  Fit fit(const std::string& folder, int64_t max_epochs, int64_t patience = 3, int64_t min_epochs = 0) const {
    Fit fit{.options = {.monitor = "m", .patience = patience}, .values = {5, 4, 4, 3, 3, 3, 3, 2, 2}};
    fit.run.max_epochs = max_epochs;
    fit.run.min_epochs = min_epochs;
    fit.run.callbacks = {
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "m", .patience = 9, .mode = "max"}),
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / folder})};
    return fit;
  }
};

TEST_F(EarlyStoppingFiles, AResumedRunEndsWhereTheUninterruptedOneDoes) {
  Fit whole = fit("whole", 9);
  whole.go();
  ASSERT_EQ(whole.stopping->stopped_epoch(), 6);
  for (int64_t epochs = 1; epochs <= 7; ++epochs) {
    const std::string half = "half" + std::to_string(epochs), rest = "rest" + std::to_string(epochs);
    fit(half, epochs).go();
    Fit resumed = fit(rest, 9);
    resumed.comes_last = true;  // found by monitor and mode, not by position
    resumed.go(folder_ / half);
    EXPECT_EQ(resumed.result.epochs, 7) << epochs;
    EXPECT_EQ(resumed.result.stopped_by, whole.result.stopped_by) << epochs;
    EXPECT_EQ(difference(resumed.stopping->state_dict(), whole.stopping->state_dict()), "") << epochs;
  }
}

TEST_F(EarlyStoppingFiles, AResumedRunContinuesWithMorePatience) {
  fit("ended", 9).go();
  Fit more = fit("more", 9, /*patience=*/4);
  more.go(folder_ / "ended");
  EXPECT_EQ(more.result.epochs, 9);
  EXPECT_EQ(more.result.stopped_by, "");
  EXPECT_EQ(more.stopping->stopping_reason_message(), "");
  EXPECT_EQ(more.stopping->best_score(), 2);
  EXPECT_EQ(more.stopping->stopped_epoch(), std::nullopt);
}

TEST_F(EarlyStoppingFiles, AStopThatWaitsIsNotForgotten) {
  Fit resumed = fit("rest", 9, /*patience=*/1, /*min_epochs=*/6);
  fit("waits", 4, /*patience=*/1, /*min_epochs=*/4).go();  // decided in epoch 2
  EXPECT_EQ(resumed.go(folder_ / "waits").result.epochs, 6);
  EXPECT_EQ(resumed.stopping->stopped_epoch(), 2);
}

TEST(EarlyStopping, NamesTheInfinityThatItMet) {
  Fit fit{.options = {.monitor = "m", .mode = "max"}, .values = {1, -HUGE_VAL}};
  EXPECT_THAT(fit.go().result.stopped_by, HasSubstr("m is -inf; the best was 1"));
}

TEST(EarlyStopping, AnEpochWithoutTheMetricOfAnEarlierOneIsNoCheck) {
  struct LogsOnce final : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      if (trainer().progress().epoch == 0) log("m", 1.0);
      return OneWeight::training_step(batch, index);
    }
  } task;
  const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "m", .patience = 1});
  ListLoader train = loader_of({1});
  EXPECT_EQ(Trainer({.device = "cpu", .max_epochs = 3, .callbacks = {stopping}}).fit(task, train).epochs, 3);
}

}  // namespace
}  // namespace mantissa::early_stopping_test
