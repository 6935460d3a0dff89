// Tests what the Trainer's checkpoints hold of a task, its optimizers, schedules and loader.
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::fit_checkpoints_test {
namespace {

using testing::HasSubstr;
using testing::Not;

class FitCheckpoints : public InFolder {
 protected:
  std::shared_ptr<ModelCheckpoint> checkpoints(const std::string& name,
                                               const std::string& monitor = "") const {
    return std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / name, .filename = "{step}", .monitor = monitor});
  }
};

TEST_F(FitCheckpoints, AMetricOfTrainingIsAScore) {
  OneWeight task;
  const auto saves = checkpoints("run", "train_loss");
  ListLoader train = loader_of({1, 2});
  Trainer({.device = "cpu", .callbacks = {saves}}).fit(task, train);
  EXPECT_EQ(saves->best_model_score(), -1);
}

TEST_F(FitCheckpoints, ATaskThatHasAStateGetsItBack) {
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

TEST_F(FitCheckpoints, AScheduleThatIsNotInTheRunIsReported) {
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

TEST_F(FitCheckpoints, AWiderModeTakesNarrowWeightsWithoutAWarning) {
  OneWeight begun, resumed;
  ListLoader train = loader_of({1});
  Trainer({.precision = "bf16-true", .device = "cpu", .callbacks = {checkpoints("run")}}).fit(begun, train);
  testing::internal::CaptureStderr();
  Trainer({.precision = "32-true", .device = "cpu", .max_epochs = 2})
      .fit(resumed, train, nullptr, folder_ / "run");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("rounded")));
}

TEST_F(FitCheckpoints, ARowOfTheCheckpointedValidationIsNotLost) {
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

TEST_F(FitCheckpoints, ALoaderThatShufflesWithTheProgramsNumbersShufflesAsBefore) {
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

TEST_F(FitCheckpoints, APlateauContinuesWhereItWas) {
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

TEST_F(FitCheckpoints, AnotherNumberOfOptimizersIsRefused) {
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
}  // namespace mantissa::fit_checkpoints_test
