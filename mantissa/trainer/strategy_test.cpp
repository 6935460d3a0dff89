// Tests the interface for several processes. Threads of this process stand for them.
#include "mantissa/trainer/strategy.h"

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/strategy_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::strategy_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Strategy, TwoProcessesTrainAsOneWithBothBatches) {
  const std::vector<std::vector<float>> values{{1, 2, 3, 4}, {3, 6, 9, 12}};
  for (const int64_t window : {1, 3}) {
    const auto outcomes = in_two([&](size_t rank, const auto& strategy) {
      return train({.strategy = strategy, .accumulate_grad_batches = window}, values[rank]);
    });
    const double alone = train({.accumulate_grad_batches = window}, {2, 4, 6, 8}).weight;
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.weight, alone) << window;
      // The last batch of a window exchanges the gradients of the whole window.
      EXPECT_EQ(outcome.exchanges, window == 1 ? 4 : 2);
    }
  }
}

TEST(Strategy, AnOverflowInOneProcessSkipsTheStepInAll) {
  const std::vector<std::vector<float>> values{{1, 1, 1}, {1, kInf, 1}};
  for (const Outcome& outcome : in_two([&](size_t rank, const auto&strategy) {
         return train({.precision = "16-mixed", .strategy = strategy}, values[rank]);
       })) {
    EXPECT_EQ(outcome.result.skipped_steps, 1);
    EXPECT_EQ(outcome.scale, 32768);
    EXPECT_EQ(outcome.weight, -2);
  }
}

TEST(Strategy, AllProcessesRetryAnOverflowOfOne) {
  const std::vector<std::vector<float>> values{{1, 1, 1}, {1, 2e38F, 1}};
  for (const Outcome& outcome : in_two([&](size_t rank, const auto&strategy) {
         return train({.precision = "16-mixed", .strategy = strategy, .on_overflow = "retry"}, values[rank]);
       })) {
    EXPECT_EQ(outcome.result.skipped_steps, 0);
    EXPECT_EQ(outcome.result.retries, 16);
    EXPECT_EQ(outcome.scale, 1);
    EXPECT_EQ(outcome.weight, -1 - 1e38F - 1);
  }
}

TEST(Strategy, NoProcessRetriesALossThatIsNotFiniteInOne) {
  const std::vector<std::vector<float>> values{{1, 1, 1}, {1, kInf, 1}};
  for (const Outcome& outcome : in_two([&](size_t rank, const auto&strategy) {
         return train({.precision = "16-mixed", .strategy = strategy, .on_overflow = "retry"}, values[rank]);
       })) {
    EXPECT_EQ(outcome.result.skipped_steps, 1);
    EXPECT_EQ(outcome.result.retries, 0);
    EXPECT_EQ(outcome.scale, 32768);
  }
}

/// As OneWeight, with a product that modes compute in FP8.
struct OneProduct final : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t) override { return net->forward(batch.data).sum(); }
};

/// Takes the state of the precision.
struct StateAtEnd final : Callback {
  void on_fit_end(Trainer& trainer, const FitResult&) override {
    state = snapshot(trainer.precision().state_dict());
  }
  StateDict state;
};

TEST(Strategy, AllProcessesScaleByTheLargestMagnitudes) {
  const std::vector<std::vector<float>> values{{1, 2, 3}, {7, 1, 6}};
  std::vector<StateDict> states(2);
  in_two([&](size_t rank, const auto& strategy) {
    OneProduct task;
    const auto end = std::make_shared<StateAtEnd>();
    const PrecisionOptions fp8{.recipe = DelayedScaling{.amax_history_len = 3}, .fp8_first_and_last = true};
    Outcome outcome = train(
        task, {.precision = "fp8-mixed", .precision_options = fp8, .strategy = strategy, .callbacks = {end}},
        values[rank]);
    states[rank] = end->state;
    return outcome;
  });
  EXPECT_EQ(difference(states[0], states[1]), "") << "so a checkpoint of one process is that of all";
  const StateReader layer = StateReader(states[0]).at("fp8_state").at("layers").at("weight");
  const at::Tensor& history = layer.at("forward").at("amax_history").to_tensor();
  EXPECT_EQ(history[1][0].item<float>(), 2);
  EXPECT_EQ(history[2][0].item<float>(), 6);
  EXPECT_EQ(layer.at("forward").at("scale").to_tensor()[0].item<float>(), 448.F / 7);
}

TEST(Strategy, OneProcessAloneIsToldOfNoOthers) {
  struct Asks final : Precision {
    Asks() : Precision("asks") {}
    void set_max_reduction(const MaxReduction& /*reduction*/) override { ++reductions; }
    int reductions = 0;
  };
  const auto asks = std::make_shared<Asks>();
  TrainerOptions options;
  options.precision_plugin = asks;
  train(std::move(options), {1});
  EXPECT_EQ(asks->reductions, 0);
}

/// Calls `act` after one step of one process.
struct AtStep final : Callback {
  AtStep(int64_t step, std::function<void(Trainer&)> act) : step_(step), act_(std::move(act)) {}
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
    if (batch.global_step == step_) act_(trainer);
  }

 private:
  int64_t step_;
  std::function<void(Trainer&)> act_;
};

TEST(Strategy, AStopInOneProcessEndsAllAtTheSameStep) {
  const auto outcomes = in_two([&](size_t rank, const auto& strategy) {
    TrainerOptions options;
    options.strategy = strategy;
    options.max_epochs = 10;
    const int64_t step = rank == 1 ? 3 : -1;
    options.callbacks = {std::make_shared<AtStep>(step, [](Trainer& trainer) { trainer.stop("enough"); })};
    return train(options, {1, 2, 3, 4, 5});
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.result.steps, 3);
  EXPECT_EQ(outcomes[0].result.stopped_by, "stop() in another process");
  EXPECT_EQ(outcomes[1].result.stopped_by, "enough");
}

/// Asks for a checkpoint after one step, and records after which steps one is saved.
struct Saver final : Callback {
  explicit Saver(int64_t step) : wanted(step) {}
  bool is_checkpoint_due(const Trainer&, const TrainBatch& batch) const override {
    return batch.global_step == wanted;
  }
  void on_checkpoint_due(Trainer& trainer) override { saved.push_back(trainer.progress().steps); }
  int64_t wanted;
  std::vector<int64_t> saved;
};

TEST(Strategy, ACheckpointThatIsDueInOneProcessIsSavedByAll) {
  std::vector<std::vector<int64_t>> saved(4);
  in_two([&](size_t rank, const auto& strategy) {
    TrainerOptions options;
    options.strategy = strategy;
    const auto by_rank = std::make_shared<Saver>(rank == 0 ? 2 : 4), never = std::make_shared<Saver>(-1);
    options.callbacks = {by_rank, never};
    const Outcome outcome = train(options, {1, 2, 3, 4, 5});
    saved[2 * rank] = by_rank->saved;
    saved[2 * rank + 1] = never->saved;
    return outcome;
  });
  EXPECT_THAT(saved, ElementsAre(ElementsAre(2, 4), ElementsAre(), ElementsAre(2, 4), ElementsAre()));
}

/// Records its calls.
struct Diary final : Strategy {
  void setup_module(torch::nn::Module&) override { text += "module "; }
  void setup_optimizers(const std::vector<OptimizerConfig>& optimizers, Precision& precision) override {
    text += std::to_string(optimizers.size()) + " optimizer in " + precision.name() + " ";
  }
  void pre_backward(const at::Tensor& loss) override {
    text += "pre(" + std::to_string(loss.item<int>()) + ") ";
  }
  void post_backward() override { text += "post "; }
  void teardown() override {
    text += "teardown";
    if (fails) throw std::runtime_error("no teardown");
  }
  int64_t world_size() const override { return world; }
  std::string text;
  int64_t world = 1;
  bool fails = false;
};

TEST(Strategy, HearsOfARunInOrder) {
  const auto strategy = std::make_shared<Diary>();
  train({.precision = "16-mixed", .strategy = strategy}, {1});
  EXPECT_EQ(strategy->text, "module 1 optimizer in 16-mixed pre(0) post teardown");
}

TEST(Strategy, ReceivesTheScaledLoss) {
  struct Task final : OneWeight {
    at::Tensor training_step(const Batch&, int64_t) override { return net->weight.sum() * 0 + 1; }
  } task;
  const auto strategy = std::make_shared<Diary>();
  ListLoader loader = loader_of({1});
  Trainer({.precision = "16-mixed", .device = "cpu", .strategy = strategy}).fit(task, loader);
  EXPECT_THAT(strategy->text, HasSubstr("pre(65536) post "));
}

TEST(Strategy, EveryBackwardPassOfAManualTaskIsExchanged) {
  struct Task final : OneWeight {
    bool automatic_optimization() const override { return false; }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      for (int i = 0; i < 2; ++i) manual_backward((net->weight * batch.data).sum() + 1);
      optimizers().step();
      optimizers().zero_grad();
      return {};
    }
  } task;
  const auto strategy = std::make_shared<Diary>();
  ListLoader loader = loader_of({1});
  Trainer({.device = "cpu", .strategy = strategy}).fit(task, loader);
  EXPECT_THAT(strategy->text, HasSubstr("pre(1) post pre(1) post "));
}

TEST(Strategy, EndsWithTheRunThatAnExceptionEnds) {
  const auto strategy = std::make_shared<Diary>();
  strategy->fails = true;
  OneWeight task;
  task.throws_at = 1;
  ListLoader loader = loader_of({1});
  Trainer trainer({.device = "cpu", .strategy = strategy});
  testing::internal::CaptureStderr();
  EXPECT_THAT([&] { trainer.fit(task, loader); },
              testing::ThrowsMessage<std::runtime_error>(HasSubstr("training_step failed")));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the strategy failed while the run ended"));
  EXPECT_THAT(strategy->text, testing::EndsWith("teardown"));
}

TEST(Strategy, DifferentCallbacksAreRefusedByAll) {
  in_two([&](size_t rank, const auto& strategy) {
    TrainerOptions options;
    options.strategy = strategy;
    if (rank == 1) options.callbacks = {std::make_shared<Saver>(1)};
    EXPECT_THAT([&] { train(options, {1}); }, testing::ThrowsMessage<c10::ValueError>(
                                                  HasSubstr("one process has 0 callbacks and another 1")));
    return Outcome();
  });
}

TEST(Strategy, DifferentNumbersOfBatchesAreRefusedByAll) {
  in_two([&](size_t rank, const auto& strategy) {
    EXPECT_THAT(error_of([&] { train({.strategy = strategy}, std::vector<float>(rank + 2, 1)); }),
                HasSubstr("one process has 2 training batches per epoch and another 3"));
    return Outcome();
  });
}

/// Lowers the rate as soon as its metric is no better. In one process it always is better.
struct WithPlateau final : OneWeight {
  explicit WithPlateau(size_t rank) : direction(rank == 0 ? -1 : 2) {}
  std::vector<OptimizerConfig> configure_optimizers() override {
    OptimizerConfig config{std::make_shared<torch::optim::SGD>(net->parameters(), 1.0)};
    config.plateau = std::make_shared<torch::optim::ReduceLROnPlateauScheduler>(
        *config.optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, /*patience=*/0);
    config.monitor = "m";
    return {config};
  }
  void validation_step(const Batch&, int64_t) override { log("m", direction * ++validations); }
  double direction;
  int validations = 0;
};

TEST(Strategy, ASchedulesMetricIsTheMeanOverAllProcesses) {
  const auto outcomes = in_two([&](size_t rank, const auto& strategy) {
    WithPlateau task(rank);
    return train(task, {.strategy = strategy, .max_epochs = 4}, {1}, {1});
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.weight, -2.75) << "the mean rises, so the rate is 1, 1, 0.5, 0.25";
    EXPECT_EQ(outcome.result.metrics.at("m"), 2) << "of -4 and 8";
  }
}

TEST(Strategy, MeansAreWeightedByTheSamplesOfEachProcess) {
  std::vector<Metrics> metrics(2);
  in_two([&](size_t rank, const auto& strategy) {
    OneWeight task;
    // One process validates three batches of 1, the other one batch of 5.
    ListLoader val = rank == 0 ? loader_of({1, 1, 1}) : loader_of({5});
    metrics[rank] = Trainer({.device = "cpu", .strategy = strategy}).validate(task, val);
    return Outcome();
  });
  for (const Metrics& all : metrics) EXPECT_EQ(all.at("val_x"), 2);
}

TEST(Strategy, DifferentMetricsAreRefusedByAll) {
  in_two([&](size_t rank, const auto& strategy) {
    struct Task final : OneWeight {
      void validation_step(const Batch&, int64_t) override { log(name, 1.0); }
      std::string name;
    } task;
    task.name = rank == 0 ? "a" : "b";
    EXPECT_THAT(error_of([&] { train(task, {.strategy = strategy}, {1}, {1}); }),
                HasSubstr("logged different metrics, and this one logged " + task.name));
    return Outcome();
  });
}

TEST(Strategy, LbfgsTakesTheSameStepsInAllProcesses) {
  struct Task final : OneWeight {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::LBFGS>(
          net->parameters(), torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"))}};
    }
    at::Tensor training_step(const Batch& batch, int64_t) override {
      const at::Tensor y = net->weight * batch.data;
      return (y - 1).pow(4).sum() + y.cos().sum();
    }
  };
  const std::vector<std::vector<float>> values{{-3, 1, 0.5}, {1, 2, 3}};
  const auto outcomes = in_two([&](size_t rank, const auto& strategy) {
    Task task;
    return train(task, {.strategy = strategy}, values[rank]);
  });
  EXPECT_NE(outcomes[0].weight, 0);
  EXPECT_EQ(outcomes[0].weight, outcomes[1].weight);
  Task task;
  const double alone = train(task, {}, values[0]).weight;
  for (const Outcome& outcome : in_two([&](size_t, const auto& strategy) {
         Task same;
         return train(same, {.strategy = strategy}, values[0]);
       }))
    EXPECT_EQ(outcome.weight, alone) << "the mean of equal losses is that loss";
}

TEST(Strategy, ALbfgsClosureWithoutALossIsNamed) {
  struct Task final : OneWeight {
    bool automatic_optimization() const override { return false; }
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::LBFGS>(net->parameters())}};
    }
    at::Tensor training_step(const Batch&, int64_t) override {
      optimizers().step([] { return at::Tensor(); });
      return {};
    }
  } task;
  const auto strategy = std::make_shared<Diary>();
  strategy->world = 2;
  EXPECT_THAT(error_of([&] { train(task, {.strategy = strategy}, {1}); }),
              HasSubstr("LBFGS compares losses, so every batch needs one"));
}

TEST(Strategy, ASignalInOneProcesssValidationCutsItShortInAll) {
  const InterruptScope scope;
  struct Task final : OneWeight {
    void validation_step(const Batch&, int64_t index) override {
      ++validations;
      if (!group || index != 0) return;
      group->await_another();  // which has seen no signal
      std::raise(SIGTERM);
    }
    Group* group = nullptr;
    int validations = 0;
  };
  std::vector<int> validations(2);
  const auto outcomes = in_two([&](size_t rank, const auto& strategy) {
    Task task;
    if (rank == 0) task.group = &strategy->group();
    const Outcome outcome = train(task, {.strategy = strategy, .max_epochs = 3}, {1, 2}, {1, 1});
    validations[rank] = task.validations;
    return outcome;
  });
  EXPECT_THAT(validations, ElementsAre(1, 1));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.result.interrupted_by, SIGTERM);
    EXPECT_EQ(outcome.result.epochs, 0) << "a resumed run makes this epoch's validation";
  }
}

class SharedFolder : public InFolder {};

TEST_F(SharedFolder, OnlyTheFirstProcessWritesCheckpointsAndLogs) {
  const std::vector loggers{std::make_shared<RecordingLogger>(), std::make_shared<RecordingLogger>()};
  in_two([&](size_t rank, const auto& strategy) {
    const auto saver = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_});
    const Outcome outcome =
        train({.strategy = strategy, .callbacks = {saver}, .loggers = {loggers[rank]}}, {1, 2});
    EXPECT_EQ(saver->last_model_path().empty(), rank != 0);
    return outcome;
  });
  EXPECT_EQ(list_checkpoints(folder_).size(), 1U);
  EXPECT_EQ(loggers[0]->lines.back(), "success");
  EXPECT_THAT(loggers[1]->lines, testing::IsEmpty());
}

// Only the first process writes the checkpoint, and all read it.
TEST_F(SharedFolder, AllProcessesResumeWithTheSameScales) {
  const std::vector<std::vector<float>> values{{1, 2, 3}, {7, 1, 6}};
  const auto fit = [&](const char* name, int64_t epochs, const std::filesystem::path& from = {}) {
    std::vector<StateDict> states(2);
    in_two([&](size_t rank, const auto& strategy) {
      OneProduct task;
      const auto end = std::make_shared<StateAtEnd>();
      TrainerOptions options{.precision = "fp8-mixed", .strategy = strategy};
      options.precision_options = {.recipe = DelayedScaling{.amax_history_len = 5},
                                   .fp8_first_and_last = true};
      options.device = "cpu";
      options.max_epochs = epochs;
      options.callbacks = {
          end, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / name})};
      ListLoader loader = loader_of(values[rank]);
      Trainer(options).fit(task, loader, nullptr, from);
      states[rank] = end->state;
      return Outcome();
    });
    EXPECT_EQ(difference(states[0], states[1]), "") << name;
    return states[1];
  };
  const StateDict whole = fit("whole", 2), half = fit("half", 1);
  EXPECT_NE(difference(half, whole), "");
  EXPECT_EQ(difference(fit("resumed", 2, folder_ / "half"), whole), "");
}

TEST(Strategy, NoLossIsAnErrorWhereOthersWaitForIt) {
  const auto strategy = std::make_shared<Diary>();
  strategy->world = 3;
  EXPECT_THAT(
      [&] {
        train({.strategy = strategy}, {1, -1});
      },
      testing::ThrowsMessage<c10::Error>(
          HasSubstr("batch 1 of epoch 0 returned no loss, and the other 2 processes wait")));
}

}  // namespace
}  // namespace mantissa::strategy_test
