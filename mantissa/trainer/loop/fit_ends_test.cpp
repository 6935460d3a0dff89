// Tests what a fit reports and keeps where an epoch, a validation or the fit itself ends.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/precision/precision.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::fit_ends_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Has other batches in each epoch.
struct ByEpoch final : Loader {
  explicit ByEpoch(std::vector<std::vector<float>> all) : epochs(std::move(all)) {}
  void set_epoch(int64_t epoch) override {
    told.push_back(epoch);
    current.emplace(loader_of(epochs.at(static_cast<size_t>(epoch))));
  }
  std::optional<Batch> next() override { return current->next(); }
  int64_t size() const override { return static_cast<int64_t>(epochs[0].size()); }
  std::vector<std::vector<float>> epochs;
  std::vector<int64_t> told;
  std::optional<ListLoader> current;
};

TEST(FitEnds, TheResultHasTimesAndMemory) {
  OneWeight task;
  ListLoader train = loader_of({1, 2});
  const FitResult result = Trainer({.device = "cpu"}).fit(task, train);
  EXPECT_GT(result.step_ms, 0);
  EXPECT_GT(result.samples_per_second, 0);
  EXPECT_GT(result.peak_memory_bytes, 1 << 20);
}

TEST(FitEnds, ASignalInTheLastBatchLeavesAWholeEpochIfNothingIsValidated) {
  OneWeight task;
  task.raise_at = 3;
  const auto logger = std::make_shared<RecordingLogger>();
  ListLoader train = loader_of({1, 2, 3});
  const FitResult result =
      Trainer({.device = "cpu", .max_epochs = 2, .loggers = {logger}, .log_every_n_steps = 0})
          .fit(task, train);
  EXPECT_EQ(result.interrupted_by, SIGINT);
  EXPECT_EQ(result.epochs, 1);
  EXPECT_THAT(logger->lines, ElementsAre(HasSubstr("train_loss="), "interrupted")) << "the epoch is whole";
}

/// Raises a signal in a hook.
struct Raises final : Callback {
  void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
    if (batch.global_step == in_step) std::raise(signal);
  }
  int64_t in_step = -1;
  int signal = SIGHUP;
};

TEST(FitEnds, AnySignalInTheLastBatchLeavesTheEpochsValidationToTheNextRun) {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    OneWeight task;
    const auto raises = std::make_shared<Raises>();
    raises->in_step = 2;
    raises->signal = signal;
    ListLoader train = loader_of({1, 2}), val = loader_of({1});
    const FitResult result =
        Trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {raises}}).fit(task, train, &val);
    EXPECT_EQ(result.interrupted_by, signal);
    EXPECT_EQ(result.epochs, 0);
  }
}

TEST(FitEnds, MaxStepsInsideAnEpochLeaveARowOfItsPart) {
  for (const int64_t steps : {1, 2}) {
    OneWeight task;
    const auto logger = std::make_shared<RecordingLogger>();
    ListLoader train = loader_of({1, 2, 3});
    Trainer({.device = "cpu", .max_steps = steps, .loggers = {logger}, .log_every_n_steps = 0})
        .fit(task, train);
    EXPECT_THAT(logger->lines, ElementsAre(HasSubstr("train_loss="), "success"));
  }
}

TEST(FitEnds, ASignalInTheLastValidationLeavesNoRowOfAPartOfTheEpoch) {
  OneWeight task;
  task.raise_at = 7;
  const auto logger = std::make_shared<RecordingLogger>();
  ListLoader train = loader_of({1, 2, 3}), val = loader_of({7, 8});
  const FitResult result = Trainer({.device = "cpu",
                                    .max_steps = 2,
                                    .num_sanity_val_steps = 0,
                                    .loggers = {logger},
                                    .log_every_n_steps = 0})
                               .fit(task, train, &val);
  EXPECT_EQ(result.interrupted_by, SIGTERM);
  EXPECT_THAT(logger->lines, ElementsAre("interrupted"));
}

TEST(FitEnds, ASignalInAValidationsLastBatchLeavesItWhole) {
  OneWeight task;
  task.raise_at = 8;
  ListLoader train = loader_of({1}), val = loader_of({7, 8});
  const FitResult result = Trainer({.device = "cpu", .num_sanity_val_steps = 0}).fit(task, train, &val);
  EXPECT_EQ(result.metrics.at("val_x"), 7.5);
  EXPECT_EQ(result.epochs, 1);
}

TEST(FitEnds, AShareOfTheValidationThatLeavesNoBatchIsRefusedBeforeTraining) {
  OneWeight task;
  ListLoader train = loader_of({1}), val = loader_of({7, 8});
  Trainer trainer({.device = "cpu", .limit_val_batches = 0.1, .num_sanity_val_steps = 0});
  EXPECT_THAT(error_of([&] { trainer.fit(task, train, &val); }), HasSubstr("leaves no batch"));
  EXPECT_EQ(task.trace, "");
}

TEST(FitEnds, AnEpochWithoutAStepLeavesItsScheduleAlone) {
  OneWeight task;
  task.with_schedule = true;
  task.interval = OptimizerConfig::Interval::kEpoch;
  const auto recorder = std::make_shared<Recorder>();
  ByEpoch train({{1}, {1}, {kInf}, {kInf}, {1}});
  Trainer({.precision = "16-mixed", .device = "cpu", .max_epochs = 5, .callbacks = {recorder}})
      .fit(task, train);
  // libtorch's StepLR takes its first step() as step 0. The rate is that of the last epoch's batch.
  EXPECT_EQ(recorder->rate, 0.5);
}

/// A schedule that counts its steps.
struct CountsSteps final : torch::optim::LRScheduler {
  explicit CountsSteps(torch::optim::Optimizer& optimizer) : LRScheduler(optimizer) {}
  std::vector<double> get_lrs() override {
    ++steps;
    return get_current_lrs();
  }
  int steps = 0;
};

TEST(FitEnds, AScheduleCountsTheStepsThatWereTaken) {
  struct Scheduled final : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 1.0);
      schedule = std::make_shared<CountsSteps>(*optimizer);
      return {{optimizer, schedule, OptimizerConfig::Interval::kStep, 3}};
    }
    std::shared_ptr<CountsSteps> schedule;
  } task;
  ListLoader train = loader_of({kInf, 1, 1, 1, 1, 1});
  Trainer({.precision = "16-mixed", .device = "cpu"}).fit(task, train);
  EXPECT_EQ(task.schedule->steps, 1) << "after the third step that was not skipped";
}

TEST(FitEnds, EveryThirdStepMakesARow) {
  for (const bool automatic : {true, false}) {
    struct May final : OneWeight {
      bool automatic_optimization() const override { return is_automatic; }
      at::Tensor training_step(const Batch& batch, int64_t index) override {
        log("x", batch.data);
        return is_automatic ? OneWeight::training_step(batch, index) : at::Tensor();
      }
      bool is_automatic = true;
    } task;
    task.is_automatic = automatic;
    const auto logger = std::make_shared<RecordingLogger>();
    ListLoader train = loader_of({1, 2, 3, 4, 5, 6, 7});
    Trainer({.device = "cpu", .loggers = {logger}, .log_every_n_steps = 3}).fit(task, train);
    EXPECT_THAT(logger->lines,
                ElementsAre(HasSubstr("x_step=3"), HasSubstr("x_step=6"), HasSubstr("x=4"), "success"))
        << automatic;
  }
}

TEST(FitEnds, TheRowOfAValidationIsSentBeforeTheNextBatch) {
  struct Looks final : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      rows.push_back(logger->lines.size());
      return OneWeight::training_step(batch, index);
    }
    std::shared_ptr<RecordingLogger> logger = std::make_shared<RecordingLogger>();
    std::vector<size_t> rows;
  } task;
  ListLoader train = loader_of({1, 2, 3}), val = loader_of({1});
  Trainer({.device = "cpu",
           .val_check_interval = 1,
           .num_sanity_val_steps = 0,
           .loggers = {task.logger},
           .log_every_n_steps = 0})
      .fit(task, train, &val);
  EXPECT_THAT(task.rows, ElementsAre(0, 1, 2));
}

TEST(FitEnds, WhatIsLoggedWhereAnEpochBeginsIsARowOfItsOwn) {
  struct Logs final : Callback {
    void on_train_epoch_start(Trainer& trainer, int64_t epoch) override {
      trainer.log_metrics({{"begun", static_cast<double>(epoch)}});
    }
  };
  OneWeight task;
  const auto logger = std::make_shared<RecordingLogger>();
  ListLoader train = loader_of({1});
  Trainer({.device = "cpu",
           .max_epochs = 2,
           .callbacks = {std::make_shared<Logs>()},
           .loggers = {logger},
           .log_every_n_steps = 0})
      .fit(task, train);
  EXPECT_THAT(logger->lines,
              ElementsAre("0: begun=0 epoch=0 skipped_steps=0", "1: epoch=0 skipped_steps=0 train_loss=0",
                          "1: begun=1 epoch=1 skipped_steps=0", "2: epoch=1 skipped_steps=0 train_loss=-1",
                          "success"));
}

TEST(FitEnds, ABatchThatFailedMakesNoRow) {
  struct Looks final : Callback {
    void on_exception(Trainer& trainer, const std::exception_ptr&) override { logs = trainer.should_log(); }
    std::optional<bool> logs;
  };
  OneWeight task;
  task.throws_at = 1;
  const auto looks = std::make_shared<Looks>();
  ListLoader train = loader_of({1});
  Trainer trainer({.device = "cpu",
                   .callbacks = {looks},
                   .loggers = {std::make_shared<RecordingLogger>()},
                   .log_every_n_steps = 1});
  EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
  EXPECT_EQ(looks->logs, std::optional(false));
}

TEST(FitEnds, ARunContinuesExactlyFromTheEndOfABatchOn) {
  struct Looks final : Callback {
    void on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer&) override {
      seen.push_back(trainer.resumes_exactly());
    }
    void on_train_batch_end(Trainer& trainer, const TrainBatch&) override {
      seen.push_back(trainer.resumes_exactly());
    }
    std::vector<bool> seen;
  };
  OneWeight task;
  const auto looks = std::make_shared<Looks>();
  ListLoader train = loader_of({1, 2});
  Trainer({.device = "cpu", .callbacks = {looks}}).fit(task, train);
  EXPECT_THAT(looks->seen, ElementsAre(false, true, false, true));
}

/// A mode that records how it is told to find the largest magnitude.
struct RecordsReductions final : Precision {
  RecordsReductions() : Precision("records") {}
  void set_max_reduction(const MaxReduction& reduction) override { told.push_back(reduction != nullptr); }
  std::vector<bool> told;
};

/// The other process has the same numbers.
struct Twin final : Strategy {
  explicit Twin(int64_t processes) : size(processes) {}
  int64_t world_size() const override { return size; }
  int64_t size;
};

TEST(FitEnds, OnlySeveralProcessesReduceMagnitudesAndOnlyDuringTheFit) {
  for (const int64_t size : {1, 2}) {
    const auto records = std::make_shared<RecordsReductions>();
    OneWeight task;
    ListLoader train = loader_of({1});
    Trainer({.precision_plugin = records, .device = "cpu", .strategy = std::make_shared<Twin>(size)})
        .fit(task, train);
    EXPECT_EQ(records->told, size == 1 ? std::vector<bool>() : (std::vector<bool>{true, false})) << size;
  }
}

TEST(FitEnds, AProcessWithFewerBatchesValidatesItsOwn) {
  /// The other process has 2 batches.
  struct HasTwo final : Strategy {
    int64_t world_size() const override { return 2; }
    at::Tensor all_reduce(at::Tensor values, ReduceOp) override {
      return values.numel() == 1 && values.item<double>() == 1 ? values * 2 : values;
    }
  };
  OneWeight task;
  ListLoader data = loader_of({1, 2, 3});
  Trainer trainer({.device = "cpu", .strategy = std::make_shared<HasTwo>(), .limit_val_batches = 1});
  EXPECT_EQ(trainer.validate(task, data).at("val_x"), 1);
  EXPECT_EQ(task.trace, "v");
}

TEST(FitEnds, AnEvaluationAlwaysReadsTheFirstEpoch) {
  OneWeight task;
  ByEpoch data({{5}, {6}});
  Trainer trainer({.device = "cpu"});
  EXPECT_EQ(trainer.validate(task, data).at("val_x"), 5);
  EXPECT_EQ(trainer.test(task, data).at("val_x"), 5);
  EXPECT_THAT(data.told, ElementsAre(0, 0));
}

TEST(FitEnds, EachKindOfEvaluationConvertsTheModelAndTellsItsHooks) {
  struct Hooks final : Callback {
    void on_validation_start(Trainer& trainer) override { stages.push_back(trainer.stage()); }
    void on_test_start(Trainer& trainer) override { stages.push_back(trainer.stage()); }
    void on_test_batch_end(Trainer&, int64_t index) override { tested.push_back(index); }
    void on_predict_start(Trainer& trainer) override { stages.push_back(trainer.stage()); }
    void on_predict_end(Trainer&) override { ++predict_ends; }
    std::vector<Stage> stages;
    std::vector<int64_t> tested;
    int predict_ends = 0;
  };
  struct Predicts final : OneWeight {
    c10::IValue predict_step(const Batch& batch, int64_t) override { return batch.data; }
  };
  const auto hooks = std::make_shared<Hooks>();
  Trainer trainer({.precision = "64-true", .device = "cpu", .callbacks = {hooks}});
  EXPECT_EQ(trainer.stage(), Stage::kFit) << "before any run";
  ListLoader data = loader_of({1, 2});
  Predicts validated, tested, predicted;
  trainer.validate(validated, data);
  trainer.test(tested, data);
  trainer.predict(predicted, data);
  for (Predicts* task : {&validated, &tested, &predicted})
    EXPECT_EQ(task->net->weight.scalar_type(), at::kDouble);
  EXPECT_THAT(hooks->stages, ElementsAre(Stage::kValidate, Stage::kTest, Stage::kPredict));
  EXPECT_THAT(hooks->tested, ElementsAre(0, 1));
  EXPECT_EQ(hooks->predict_ends, 1);
}

TEST(FitEnds, APredictionMayBeNoTensor) {
  struct Predicts final : OneWeight {
    c10::IValue predict_step(const Batch&, int64_t index) override {
      return index == 0 ? c10::IValue(7) : c10::IValue(at::Tensor());
    }
  } task;
  ListLoader data = loader_of({1, 2});
  const auto predictions = Trainer({.precision = "16-mixed", .device = "cpu"}).predict(task, data);
  ASSERT_EQ(predictions.size(), 2U);
  EXPECT_EQ(predictions[0].toInt(), 7);
  EXPECT_FALSE(predictions[1].toTensor().defined());
}

TEST(FitEnds, WithoutAFitThereIsNoCheckpoint) {
  Trainer trainer({.device = "cpu"});
  EXPECT_THAT(error_of([&] { trainer.checkpoint(); }), HasSubstr("no fit is running"));
  OneWeight task;
  ListLoader data = loader_of({1});
  trainer.validate(task, data);
  EXPECT_THAT(error_of([&] { trainer.checkpoint(); }), HasSubstr("no fit is running"));
}

TEST(FitEnds, AFitThatIsOverKeepsNoBatch) {
  struct OneBatch final : Loader {
    void set_epoch(int64_t) override { is_given = false; }
    std::optional<Batch> next() override {
      if (std::exchange(is_given, true)) return std::nullopt;
      return Batch{data, torch::zeros({1}, at::kLong), {}};
    }
    int64_t size() const override { return 1; }
    at::Tensor data = torch::ones({1, 1});
    bool is_given = false;
  };
  struct Throws final : Callback {
    void on_before_optimizer_step(Trainer&, torch::optim::Optimizer&) override {
      if (throws) throw std::runtime_error("callback failed");
    }
    bool throws = false;
  };
  for (TrainerOptions options : std::vector<TrainerOptions>{{.precision = "16-mixed", .on_overflow = "retry"},
                                                            {.overfit_batches = 1}}) {
    for (const bool throws : {false, true}) {
      OneWeight task;
      const auto callback = std::make_shared<Throws>();
      callback->throws = throws;
      options.device = "cpu";
      options.callbacks = {callback};
      Trainer trainer(options);
      const auto batch = [&] {
        OneBatch train, val;
        val.data = train.data;
        EXPECT_EQ(what_a_fit_throws([&] { trainer.fit(task, train, &val); }) != "", throws);
        return c10::weak_intrusive_ptr(train.data.getIntrusivePtr());
      }();
      EXPECT_TRUE(batch.expired()) << options.on_overflow << throws;
    }
  }
}

TEST(FitEnds, ATransactionalFitThatIsOverKeepsNoBuffer) {
  Trainer trainer({.device = "cpu", .transactional = true});
  const auto buffer = [&] {
    OneWeight task;
    const at::Tensor seen = task.net->register_buffer("seen", torch::zeros({3}));
    ListLoader train = loader_of({1});
    trainer.fit(task, train);
    return c10::weak_intrusive_ptr(seen.getIntrusivePtr());
  }();
  EXPECT_TRUE(buffer.expired());
}

TEST(FitEnds, ABatchWithoutAManualStepReportsNone) {
  struct EverySecond final : OneWeight {
    bool automatic_optimization() const override { return false; }
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      if (index % 2 == 1) return {};
      optimizers().zero_grad();
      manual_backward((net->weight * batch.data).sum());
      optimizers().step();
      return {};
    }
  } task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({kInf, 1, 1});
  Trainer({.precision = "16-mixed", .device = "cpu", .callbacks = {recorder}}).fit(task, train);
  std::vector<bool> stepped, skipped;
  for (const TrainBatch& batch : recorder->batches) {
    stepped.push_back(batch.stepped);
    skipped.push_back(batch.step.skipped());
  }
  EXPECT_THAT(stepped, ElementsAre(true, false, true));
  EXPECT_THAT(skipped, ElementsAre(true, false, false));
}

TEST(FitEnds, ALoaderThatEndsEarlyIsNotAskedAgain) {
  struct Short final : Loader {
    void set_epoch(int64_t) override { given = 0; }
    std::optional<Batch> next() override {
      ++asked;
      return given++ == 0 ? std::optional(Batch{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}})
                          : std::nullopt;
    }
    int64_t size() const override { return 3; }
    int given = 0, asked = 0;
  };
  OneWeight validated, fitted;
  Short val, train;
  Trainer({.device = "cpu"}).validate(validated, val);
  EXPECT_EQ(validated.trace, "v");
  EXPECT_EQ(val.asked, 2);
  EXPECT_EQ(Trainer({.device = "cpu", .overfit_batches = 2}).fit(fitted, train).steps, 1);
}

TEST(FitEnds, OverfittingTakesTheBatchesOfTheFirstEpoch) {
  OneWeight task;
  ByEpoch train({{1}, {2}});
  train.set_epoch(1);
  train.told.clear();
  Trainer({.device = "cpu", .max_epochs = 2, .overfit_batches = 1}).fit(task, train);
  EXPECT_THAT(train.told, ElementsAre(0));
  EXPECT_EQ(task.weight(), -2);
}

TEST(FitEnds, AnEpochOfOneBatchThatIsNotGivenAgainIsRefused) {
  struct Once final : Loader {
    void set_epoch(int64_t) override {}
    std::optional<Batch> next() override {
      return given++ == 0 ? std::optional(Batch{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}})
                          : std::nullopt;
    }
    int64_t size() const override { return 1; }
    int given = 0;
  } train;
  OneWeight task;
  Trainer trainer({.device = "cpu", .max_epochs = 2});
  EXPECT_THAT(error_of([&] { trainer.fit(task, train); }),
              HasSubstr("gave no batch in epoch 1; a loader must restart at set_epoch()"));
}

}  // namespace
}  // namespace mantissa::fit_ends_test
