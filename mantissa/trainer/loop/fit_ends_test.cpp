// Tests what a fit reports and keeps where an epoch, a validation or the fit itself ends.
#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <functional>
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
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::fit_ends_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Returns the message of what `run` throws, or "".
std::string what_a_fit_throws(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

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

/// (w - x)^2, minimized by LBFGS.
struct Minimizes : OneWeight {
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::LBFGS>(net->parameters(),
                                                   torch::optim::LBFGSOptions(0.1).max_iter(3))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    ++evaluations;
    return loss_of(net->weight, batch.data);
  }
  virtual at::Tensor loss_of(const at::Tensor& weight, const at::Tensor& x) {
    return (weight - x).square().sum();
  }
  int evaluations = 0;
};

TEST(FitEnds, LbfgsTakesTheStepsOfItsOwnLoop) {
  Minimizes task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({5, 5});
  Trainer({.device = "cpu", .callbacks = {recorder}}).fit(task, train);
  at::Tensor weight = torch::zeros({1, 1}, torch::requires_grad());
  torch::optim::LBFGS plain({weight}, torch::optim::LBFGSOptions(0.1).max_iter(3));
  for (int i = 0; i < 2; ++i)
    plain.step([&] {
      plain.zero_grad();
      at::Tensor loss = (weight - 5).square().sum();
      loss.backward();
      return loss;
    });
  EXPECT_EQ(task.weight(), weight.item<double>());
  EXPECT_EQ(recorder->batches.size(), 2U);
  EXPECT_EQ(recorder->batches[1].global_step, 2);
  const auto calls = [&](char hook) { return std::count(task.trace.begin(), task.trace.end(), hook); };
  for (const char hook : {'z', 'b', 'a', 's'}) EXPECT_EQ(calls(hook), task.evaluations) << hook;
  EXPECT_FALSE(recorder->batches[0].loss.requires_grad());
}

TEST(FitEnds, LbfgsRefusesALossOfSeveralNumbers) {
  struct Two final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor&) override {
      return torch::cat({weight, weight});
    }
  } task;
  ListLoader train = loader_of({5});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu"}).fit(task, train); }),
              HasSubstr("batch 0 of epoch 0 returned more than one number; return a scalar made"));
}

TEST(FitEnds, TheOriginOfLbfgssNanIsFound) {
  struct Log final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor&) override {
      return torch::log(weight - 1).sum();
    }
  } task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({5});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .trace_nonfinite = true, .callbacks = {recorder}}).fit(task, train);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("forward: aten::log"));
  EXPECT_TRUE(recorder->batches[0].origin.has_value());
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

TEST(FitEnds, LbfgssGradientsAreClipped) {
  const auto weight = [](double clip) {
    Minimizes task;
    ListLoader train = loader_of({5});
    Trainer({.device = "cpu", .gradient_clip_val = clip}).fit(task, train);
    return task.weight();
  };
  EXPECT_LT(weight(0.01), 0.5 * weight(0));
}

TEST(FitEnds, TheOriginOfLbfgssInfiniteGradientIsFound) {
  struct Root final : Minimizes {
    at::Tensor loss_of(const at::Tensor& weight, const at::Tensor&) override {
      return torch::sqrt(weight).sum();
    }
  } task;
  const auto recorder = std::make_shared<Recorder>();
  ListLoader train = loader_of({5});
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .trace_nonfinite = true, .callbacks = {recorder}}).fit(task, train);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("in the derivative of aten::sqrt"));
}

/// Steps by itself, with a closure.
struct StepsWithClosure final : OneWeight {
  bool automatic_optimization() const override { return false; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    if (!lbfgs) return OneWeight::configure_optimizers();
    return {{std::make_shared<torch::optim::LBFGS>(net->parameters(),
                                                   torch::optim::LBFGSOptions(0.1).max_iter(3))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    optimizers().step([&] {
      ++evaluations;
      optimizers().zero_grad();
      const at::Tensor loss = (net->weight - batch.data).square().sum();
      manual_backward(loss);
      return loss;
    });
    return net->weight.sum();
  }
  bool lbfgs = false;
  int evaluations = 0;
};

TEST(FitEnds, AManualStepRunsItsClosureWithTheHooksOfEachEvaluation) {
  for (const bool lbfgs : {false, true}) {
    StepsWithClosure task;
    task.lbfgs = lbfgs;
    const auto recorder = std::make_shared<Recorder>();
    ListLoader train = loader_of({5});
    Trainer({.device = "cpu", .callbacks = {recorder}}).fit(task, train);
    EXPECT_TRUE(lbfgs || task.evaluations == 1) << task.evaluations;
    EXPECT_NE(task.weight(), 0);
    EXPECT_EQ(std::count(task.trace.begin(), task.trace.end(), 's'), task.evaluations) << lbfgs;
    EXPECT_FALSE(recorder->batches.at(0).loss.requires_grad());
  }
}

class FitEndsFiles : public InFolder {
 protected:
  std::shared_ptr<ModelCheckpoint> checkpoints(const std::string& name,
                                               const std::string& monitor = "") const {
    return std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / name, .filename = "{step}", .monitor = monitor});
  }
};

TEST_F(FitEndsFiles, AMetricOfTrainingIsAScore) {
  OneWeight task;
  const auto saves = checkpoints("run", "train_loss");
  ListLoader train = loader_of({1, 2});
  Trainer({.device = "cpu", .callbacks = {saves}}).fit(task, train);
  EXPECT_EQ(saves->best_model_score(), -1);
}

TEST_F(FitEndsFiles, ATaskThatHasAStateGetsItBack) {
  struct Counts final : OneWeight, Stateful {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      ++steps;
      return OneWeight::training_step(batch, index);
    }
    StateDict state_dict() const override { return {{"steps", steps}}; }
    void load_state_dict(const StateReader& state) override { steps = state.at("steps").to_count(); }
    int64_t steps = 0;
  } begun, resumed;
  ListLoader train = loader_of({1, 2});
  Trainer({.device = "cpu", .callbacks = {checkpoints("run")}}).fit(begun, train);
  Trainer({.device = "cpu", .max_epochs = 2}).fit(resumed, train, nullptr, folder_ / "run");
  EXPECT_EQ(resumed.steps, 4);
}

TEST_F(FitEndsFiles, AScheduleThatIsNotInTheRunIsReported) {
  OneWeight begun, resumed;
  begun.with_schedule = true;
  ListLoader train = loader_of({1});
  Trainer({.device = "cpu", .callbacks = {checkpoints("run")}}).fit(begun, train);
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .max_epochs = 2}).fit(resumed, train, nullptr, folder_ / "run");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("its schedule of optimizer 0 is not in this run"));
  OneWeight again;
  again.with_schedule = true;
  testing::internal::CaptureStderr();
  Trainer({.device = "cpu", .max_epochs = 2}).fit(again, train, nullptr, folder_ / "run");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("schedule")));
}

TEST_F(FitEndsFiles, AWiderModeTakesNarrowWeightsWithoutAWarning) {
  OneWeight begun, resumed;
  ListLoader train = loader_of({1});
  Trainer({.precision = "bf16-true", .device = "cpu", .callbacks = {checkpoints("run")}}).fit(begun, train);
  testing::internal::CaptureStderr();
  Trainer({.precision = "32-true", .device = "cpu", .max_epochs = 2})
      .fit(resumed, train, nullptr, folder_ / "run");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("rounded")));
}

TEST_F(FitEndsFiles, ARowOfTheCheckpointedValidationIsNotLost) {
  struct Breaks final : Callback {
    void on_train_batch_end(Trainer&, const TrainBatch& batch) override {
      if (batch.global_step == at) throw std::runtime_error("killed");
    }
    int64_t at = -1;
  };
  const auto run = [&](const std::string& log, int64_t breaks_at, bool resumes) {
    OneWeight task;
    ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({1});
    const auto breaks = std::make_shared<Breaks>();
    breaks->at = breaks_at;
    const auto saves = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
        .dirpath = folder_ / ("of " + log), .monitor = "val_x", .save_on_exception = false});
    Trainer trainer({.device = "cpu",
                     .val_check_interval = 2,
                     .num_sanity_val_steps = 0,
                     .callbacks = {breaks, saves},
                     .loggers = {std::make_shared<CSVLogger>(folder_ / log)},
                     .log_every_n_steps = 1});
    const std::filesystem::path from = resumes ? folder_ / ("of " + log) : "";
    EXPECT_EQ(what_a_fit_throws([&] { trainer.fit(task, train, &val, from); }),
              breaks_at >= 0 ? "killed" : "");
  };
  run("whole", -1, false);
  run("parts", 3, false);
  run("parts", -1, true);
  EXPECT_EQ(content_of(folder_ / "whole/metrics.csv"), content_of(folder_ / "parts/metrics.csv"));
}

/// Shuffles with the program's random numbers.
struct Shuffles final : Loader {
  void set_epoch(int64_t) override {
    order = torch::randperm(8).to(at::kFloat);
    next_ = 0;
  }
  std::optional<Batch> next() override {
    if (next_ == 8) return std::nullopt;
    return Batch{order[next_++].reshape({1, 1}), torch::zeros({1}, at::kLong), {}};
  }
  int64_t size() const override { return 8; }
  at::Tensor order;
  int64_t next_ = 0;
};

TEST_F(FitEndsFiles, ALoaderThatShufflesWithTheProgramsNumbersShufflesAsBefore) {
  const auto last_order = [&](const std::string& name, int64_t epochs, int64_t seed,
                              const std::string& from) {
    OneWeight task;
    Shuffles train;
    torch::manual_seed(seed);
    Trainer({.device = "cpu", .max_epochs = epochs, .callbacks = {checkpoints(name)}})
        .fit(task, train, nullptr, from.empty() ? std::filesystem::path() : folder_ / from);
    return train.order;
  };
  const at::Tensor whole = last_order("whole", 2, 3, "");
  last_order("half", 1, 3, "");
  EXPECT_TRUE(last_order("rest", 2, 99, "half").equal(whole));
}

TEST_F(FitEndsFiles, APlateauContinuesWhereItWas) {
  struct Flat : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      auto optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 1.0);
      OptimizerConfig config{optimizer};
      config.plateau = std::make_shared<torch::optim::ReduceLROnPlateauScheduler>(
          *optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, /*patience=*/1);
      config.monitor = "val_x";
      return {config};
    }
  } begun, resumed;
  ListLoader train = loader_of({0}), val = loader_of({5});
  const auto rate = [&](Task& task, int64_t epochs, const std::filesystem::path& from) {
    Trainer trainer({.device = "cpu", .max_epochs = epochs, .callbacks = {checkpoints("run")}});
    testing::internal::CaptureStderr();
    trainer.fit(task, train, &val, from);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    return trainer.optimizer()->param_groups()[0].options().get_lr();
  };
  EXPECT_EQ(rate(begun, 2, ""), 1) << "one epoch no better";
  EXPECT_EQ(rate(resumed, 3, folder_ / "run"), 0.5) << "two epochs no better";
}

TEST_F(FitEndsFiles, AnotherNumberOfOptimizersIsRefused) {
  struct Several final : OneWeight {
    bool automatic_optimization() const override { return false; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      std::vector<OptimizerConfig> all;
      for (int i = 0; i < count; ++i)
        all.emplace_back(std::make_shared<torch::optim::SGD>(net->parameters(), 1.0));
      return all;
    }
    at::Tensor training_step(const Batch&, int64_t) override { return {}; }
    int count = 1;
  } begun, resumed;
  begun.count = 2;
  ListLoader train = loader_of({1});
  Trainer({.device = "cpu", .callbacks = {checkpoints("run")}}).fit(begun, train);
  Trainer trainer({.device = "cpu", .max_epochs = 2});
  EXPECT_THAT(error_of([&] { trainer.fit(resumed, train, nullptr, folder_ / "run"); }),
              HasSubstr("holds 2 optimizers, and the task has 1; resume with the task that was saved"));
}

}  // namespace
}  // namespace mantissa::fit_ends_test
