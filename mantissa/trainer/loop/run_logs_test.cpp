// Tests what a run sends to its loggers, and when.
#include <gmock/gmock.h>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/loop/run_logs_internal.h"
#include "mantissa/trainer/metrics.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::run_logs_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Logs the batch's number, in validation as well.
struct LogsX : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    log("x", batch.data);
    return OneWeight::training_step(batch, index);
  }
};

struct Fit {
  TrainerOptions options = {};
  std::vector<float> train = {1, 2, 3};
  std::vector<float> val = {};
  LogsX task = {};

  std::vector<std::string> lines() {
    const auto recording = std::make_shared<RecordingLogger>();
    options.device = "cpu";
    options.loggers = {recording};
    ListLoader batches = loader_of(train), validation = loader_of(val);
    try {
      Trainer(options).fit(task, batches, val.empty() ? nullptr : &validation);
    } catch (const std::runtime_error&) {  // the loggers record it
    }
    return recording->lines;
  }
};

TEST(RunLogs, ARowEveryNStepsAndOneAnEpoch) {
  EXPECT_THAT(
      (Fit{.options = {.max_epochs = 2, .log_every_n_steps = 2}, .val = {5}}.lines()),
      ElementsAre("2: epoch=0 skipped_steps=0 train_loss_step=-2 x_step=2",
                  "3: epoch=0 skipped_steps=0 train_loss=-3.6666666666666665 val_x=5 x=2",
                  "4: epoch=1 skipped_steps=0 train_loss_step=-6 x_step=1",
                  "6: epoch=1 skipped_steps=0 train_loss_step=-27 x_step=3",
                  "6: epoch=1 skipped_steps=0 train_loss=-15.666666666666666 val_x=5 x=2", "success"));
}

TEST(RunLogs, AStepIsLoggedWithItsWindowsLastBatch) {
  EXPECT_THAT((Fit{.options = {.accumulate_grad_batches = 2, .log_every_n_steps = 1}}.lines()),
              ElementsAre("1: epoch=0 skipped_steps=0 train_loss_step=0 x_step=2",
                          "2: epoch=0 skipped_steps=0 train_loss_step=-4.5 x_step=3",
                          "2: epoch=0 skipped_steps=0 train_loss=-1.5 x=2", "success"));
}

TEST(RunLogs, NeverAndLeftOut) {
  EXPECT_THAT((Fit{.options = {.log_every_n_steps = 0}}.lines()),
              ElementsAre("3: epoch=0 skipped_steps=0 train_loss=-3.6666666666666665 x=2", "success"));
  EXPECT_THAT((Fit{.options = {.fast_dev_run = true}}.lines()), ElementsAre());
  EXPECT_THROW(Trainer({.device = "cpu", .log_every_n_steps = -1}), c10::ValueError);
  EXPECT_THROW(Trainer({.device = "cpu", .loggers = {nullptr}}), c10::ValueError);
}

TEST(RunLogs, AnEpochThatTheRunEndsInHasARow) {
  EXPECT_THAT((Fit{.options = {.max_epochs = -1, .max_steps = 2, .log_every_n_steps = 0}}.lines()),
              ElementsAre("2: epoch=0 skipped_steps=0 train_loss=-1 x=1.5", "success"));
  Fit interrupted{.options = {.max_epochs = 2, .log_every_n_steps = 0}};
  interrupted.task.raise_at = 3;
  EXPECT_THAT(interrupted.lines(),
              ElementsAre("3: epoch=0 skipped_steps=0 train_loss=-3.6666666666666665 x=2", "interrupted"))
      << "it is over all the same";
}

TEST(RunLogs, ValidationInsideAnEpochIsARowOfItsStep) {
  EXPECT_THAT(
      (Fit{.options = {.val_check_interval = 2, .log_every_n_steps = 0}, .val = {5}}.lines()),
      ElementsAre("2: epoch=0 skipped_steps=0 val_x=5",
                  "3: epoch=0 skipped_steps=0 train_loss=-3.6666666666666665 val_x=5 x=2", "success"));
}

TEST(RunLogs, ASkippedStepCountsAndIsLogged) {
  EXPECT_THAT((Fit{.options = {.precision = "16-mixed", .log_every_n_steps = 1}, .train = {kInf}}.lines()),
              ElementsAre("1: epoch=0 skipped_steps=1 train_loss_step=nan x_step=inf",
                          "1: epoch=0 skipped_steps=1 train_loss=nan x=inf", "success"));
}

TEST(RunLogs, WhatCallbacksLogIsOfTheSameRow) {
  struct Logs final : Callback {
    void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer&) override {
      if (trainer.should_log()) trainer.log_metrics({{"before", 1}});
    }
    void on_train_batch_end(Trainer& trainer, const TrainBatch&) override {
      if (trainer.should_log()) trainer.log_metrics({{"after", 2}});
      EXPECT_THROW(trainer.log_metrics({{"step", 1}}), c10::ValueError);
    }
  };
  EXPECT_THAT((Fit{.options = {.callbacks = {std::make_shared<Logs>()}, .log_every_n_steps = 2}}.lines()),
              ElementsAre("2: after=2 before=1 epoch=0 skipped_steps=0 train_loss_step=-2 x_step=2",
                          "3: epoch=0 skipped_steps=0 train_loss=-3.6666666666666665 x=2", "success"));
}

TEST(RunLogs, NamesOfTheLoggersOwnColumnsAreRefused) {
  struct LogsStep : OneWeight {
    at::Tensor training_step(const Batch&, int64_t) override {
      log("step", 1);
      return {};
    }
  } task;
  ListLoader train = loader_of({1});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu"}).fit(task, train); }),
              HasSubstr("log: the name 'step'"));
}

TEST(RunLogs, TheStatusTellsHowItEnded) {
  Fit failed{.options = {.log_every_n_steps = 1}};
  failed.task.throws_at = 2;
  EXPECT_THAT(failed.lines(), ElementsAre("1: epoch=0 skipped_steps=0 train_loss_step=0 x_step=1", "failed"));
  Fit interrupted{.options = {.log_every_n_steps = 0}};
  interrupted.task.raise_at = 1;
  EXPECT_THAT(interrupted.lines(), ElementsAre("interrupted")) << "no mean of a part of the epoch";
}

TEST(RunLogs, WhatCallbacksLogOfAFailureInsideABatchIsARow) {
  struct LogsFailure final : Callback {
    void on_exception(Trainer& trainer, const std::exception_ptr&) override {
      trainer.log_metrics({{"failed", 1}});
    }
    void teardown(Trainer& trainer, Stage) override { trainer.log_metrics({{"torn_down", 1}}); }
  };
  Fit failed{.options = {.callbacks = {std::make_shared<LogsFailure>()}, .log_every_n_steps = 1}};
  failed.task.throws_at = 2;
  EXPECT_THAT(failed.lines(), ElementsAre("1: epoch=0 skipped_steps=0 train_loss_step=0 x_step=1",
                                          "1: epoch=0 failed=1 skipped_steps=0 torn_down=1", "failed"));
}

TEST(RunLogs, OneThatFailsIsLeftOutAndTheOthersGetTheirs) {
  const auto bad = std::make_shared<RecordingLogger>(), good = std::make_shared<RecordingLogger>();
  bad->fails = true;
  LogsX task;
  ListLoader train = loader_of({1, 2, 3});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .loggers = {bad, good}, .log_every_n_steps = 1}).fit(task, train);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("the recording logger failed, and the run continues without it: no room"));
  EXPECT_EQ(warnings.find("logger failed"), warnings.rfind("logger failed")) << "once";
  EXPECT_THAT(bad->lines, ElementsAre());
  EXPECT_EQ(good->lines.size(), 5U);
}

TEST(RunLogs, OneThatIsGivenTwiceFailsWithOneWarning) {
  const auto bad = std::make_shared<RecordingLogger>();
  bad->fails = true;
  LogsX task;
  ListLoader train = loader_of({1});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .loggers = {bad, bad}}).fit(task, train);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("logger failed"));
  EXPECT_EQ(warnings.find("logger failed"), warnings.rfind("logger failed"));
}

TEST(RunLogs, ValidateAndTestAreRows) {
  const auto recording = std::make_shared<RecordingLogger>();
  Trainer trainer({.device = "cpu", .loggers = {recording}});
  OneWeight task;
  ListLoader data = loader_of({5});
  trainer.validate(task, data);
  trainer.test(task, data);
  EXPECT_THAT(recording->lines, ElementsAre("0: epoch=0 skipped_steps=0 val_x=5", "save",
                                            "0: epoch=0 skipped_steps=0 val_x=5", "save"));
}

TEST(RunLogs, ManualOptimizationCountsBatches) {
  struct Twice : OneWeight {
    bool automatic_optimization() const override { return false; }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      for (int i = 0; i < 2; ++i) {
        optimizers().zero_grad();
        manual_backward((net->weight * batch.data).sum());
        optimizers().step();
      }
      log("x", batch.data);
      return {};
    }
  } task;
  const auto recording = std::make_shared<RecordingLogger>();
  ListLoader train = loader_of({1, 2, 3});
  Trainer({.device = "cpu", .loggers = {recording}, .log_every_n_steps = 2}).fit(task, train);
  EXPECT_THAT(recording->lines, ElementsAre("4: epoch=0 skipped_steps=0 x_step=2",
                                            "6: epoch=0 skipped_steps=0 x=2", "success"));
}

TEST(RunLogs, EachLoggerGoesOnAfterItsOwnRows) {
  struct Counts final : Logger {
    explicit Counts(std::optional<int64_t> rows) : kept(rows) {}
    std::string name() const override { return "counts"; }
    void log_metrics(MetricValues, int64_t) override {}
    void log_hyperparams(const Hyperparameters&) override {}
    std::optional<int64_t> rows() const override { return kept; }
    void resume_from(int64_t step) override { told.emplace_back(step, -1); }
    void resume_from(int64_t step, int64_t rows) override { told.emplace_back(step, rows); }
    std::optional<int64_t> kept;
    std::vector<std::pair<int64_t, int64_t>> told;
  };
  const auto first = std::make_shared<Counts>(7), second = std::make_shared<Counts>(2),
             without = std::make_shared<Counts>(std::nullopt);
  RunLogs logs({first, second, without});
  StateDict state{{"progress", StateDict{{"global_step", int64_t{5}}}}};
  logs.save(state);
  Differences differences;
  logs.load(StateReader(state), differences);
  EXPECT_THAT(first->told, ElementsAre(testing::Pair(5, 7)));
  EXPECT_THAT(second->told, ElementsAre(testing::Pair(5, 2)));
  EXPECT_THAT(without->told, ElementsAre(testing::Pair(5, -1)));
}

class RunLogsFiles : public InFolder {};

TEST_F(RunLogsFiles, AResumedRunLogsNothingTwice) {
  const auto run = [&](const std::string& log, const std::string& checkpoints, float throws_at,
                       bool resumes) {
    LogsX task;
    task.throws_at = throws_at;
    ListLoader train = loader_of({1, 2, 3, 4, 5});
    TrainerOptions options{.device = "cpu",
                           .max_epochs = 2,
                           .callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                               .dirpath = folder_ / checkpoints, .every_n_train_steps = 2})},
                           .loggers = {std::make_shared<CSVLogger>(folder_ / log)},
                           .log_every_n_steps = 1};
    if (throws_at > 0) {
      EXPECT_THROW(Trainer(options).fit(task, train), std::runtime_error);
    } else {
      Trainer(options).fit(task, train, nullptr, resumes ? folder_ / checkpoints : "");
    }
  };
  run("whole", "a", -kInf, false);
  run("parts", "b", 4, false);
  // This row is logged after the newest checkpoint, as by a run that was killed.
  CSVLogger(folder_ / "parts").log_metrics({{"x_step", 77}}, 4);
  run("parts", "b", -kInf, true);
  EXPECT_EQ(content_of(folder_ / "whole/metrics.csv"), content_of(folder_ / "parts/metrics.csv"));
}

TEST_F(RunLogsFiles, AResumedRunMakesAValidationThatASignalCutShort) {
  const auto run = [&](const std::string& log, float raise_at, bool resumes) {
    LogsX task;
    task.raise_at = raise_at;
    ListLoader train = loader_of({1, 2, 3}), val = loader_of({10, 20, 30});
    Trainer trainer({.device = "cpu",
                     .max_epochs = 2,
                     .num_sanity_val_steps = 0,
                     .callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                         .dirpath = folder_ / ("checkpoints of " + log), .monitor = "val_x"})},
                     .loggers = {std::make_shared<CSVLogger>(folder_ / log)},
                     .log_every_n_steps = 1});
    return trainer.fit(task, train, &val, resumes ? folder_ / ("checkpoints of " + log) : "");
  };
  run("whole", -kInf, false);
  const FitResult cut = run("parts", 20, false);
  EXPECT_EQ(cut.interrupted_by, SIGTERM);
  EXPECT_EQ(cut.epochs, 0);
  EXPECT_EQ(run("parts", -kInf, true).epochs, 2);
  EXPECT_EQ(content_of(folder_ / "whole/metrics.csv"), content_of(folder_ / "parts/metrics.csv"));
}

TEST_F(RunLogsFiles, RowsAreOnTheDiskBeforeACheckpointCounts) {
  /// Checks at save() whether the checkpoint exists already.
  struct Looks final : Logger {
    explicit Looks(std::filesystem::path at) : folder(std::move(at)) {}
    std::string name() const override { return "looks"; }
    void log_metrics(MetricValues, int64_t step) override { logged = step; }
    void log_hyperparams(const Hyperparameters&) override {}
    void save() override {
      ++saves;
      EXPECT_FALSE(std::filesystem::exists(folder / std::to_string(logged)));
    }
    std::filesystem::path folder;
    int64_t logged = 0, saves = 0;
  };
  const auto looks = std::make_shared<Looks>(folder_);
  LogsX task;
  ListLoader train = loader_of({1, 2, 3});
  Trainer({.device = "cpu",
           .callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_,
                                                                                  .filename = "{step}",
                                                                                  .save_last = false,
                                                                                  .every_n_epochs = 0,
                                                                                  .every_n_train_steps = 1,
                                                                                  .async = false})},
           .loggers = {looks},
           .log_every_n_steps = 1})
      .fit(task, train);
  EXPECT_EQ(looks->saves, 3);
  EXPECT_EQ(looks->logged, 3);
}

}  // namespace
}  // namespace mantissa::run_logs_test
