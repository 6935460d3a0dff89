#include "mantissa/trainer/callbacks/divergence_monitor.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loop/checkpoint_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::divergence_monitor_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The loss of each batch is its value, and so is the gradient if `trains`.
struct Losses final : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t) override {
    if (trains) return (net->weight * batch.data).sum();
    return (net->weight * 0).sum() + batch.data.sum();
  }
  bool trains = false;
};

struct Fit {
  DivergenceMonitorOptions options;
  TrainerOptions run = {};
  bool trains = false;

  std::shared_ptr<DivergenceMonitor> monitor = nullptr;
  FitResult result = {};

  Fit& go(std::vector<float> losses, const std::filesystem::path& from = {}) {
    Losses task;
    task.trains = trains;
    run.device = "cpu";
    monitor = std::make_shared<DivergenceMonitor>(options);
    run.callbacks.push_back(monitor);
    ListLoader train = loader_of(std::move(losses));
    result = Trainer(run).fit(task, train, nullptr, from);
    return *this;
  }
};

TEST(DivergenceMonitor, EndsARunWhoseLossStaysNan) {
  Fit fit{.options = {.patience = 3, .factor = 0}};
  fit.go({1, kNan, kNan, 1, kNan, kNan, kNan, 1});
  EXPECT_EQ(fit.result.steps, 7) << "two in a row are not three";
  EXPECT_EQ(fit.result.stopped_by,
            "DivergenceMonitor: the loss or the gradients have not been finite for 3 steps");
  EXPECT_TRUE(fit.monitor->has_diverged());
}

TEST(DivergenceMonitor, SkippedStepsCountThoughTheLossIsFinite) {
  Fit fit{.options = {.patience = 2}, .run = {.precision = "16-mixed"}, .trains = true};
  fit.go({1, 3e38F, 3e38F, 1});  // the weight becomes -1, and the loss of the third batch is finite
  EXPECT_EQ(fit.result.skipped_steps, 2);
  EXPECT_EQ(fit.result.steps, 3);
}

TEST(DivergenceMonitor, EndsARunWhoseLossGrows) {
  Fit fit{.options = {.window = 2, .factor = 2}};
  fit.go({3, 1, 5, 3, 5, 4, 9});  // means: 2, 3, 4, 4, 4.5
  EXPECT_EQ(fit.result.steps, 6);
  EXPECT_EQ(fit.monitor->reason(),
            "the mean of the last 2 losses is 4.5, more than 2 times that of the first, 2");
  Fit negative{.options = {.window = 2, .factor = 2}};
  EXPECT_EQ(negative.go({-3, -1, -5, -9, 7}).result.steps, 5) << "a factor says nothing about such losses";
  Fit from_zero{.options = {.window = 1, .factor = 2}};
  EXPECT_FALSE(from_zero.go({0, 1}).monitor->has_diverged()) << "nor about a loss of 0";
  Fit off{.options = {.window = 1, .factor = 0}};
  EXPECT_FALSE(off.go({1, 100}).monitor->has_diverged());
}

TEST(DivergenceMonitor, TheLossOfAStepIsThatOfItsWindow) {
  Fit fit{.options = {.patience = 1}, .run = {.accumulate_grad_batches = 2}};
  fit.go({1, 1, kNan, 1, 1, 1});
  EXPECT_EQ(fit.result.steps, 2);
  Fit mean{.options = {.window = 1, .factor = 2}, .run = {.accumulate_grad_batches = 2}};
  EXPECT_FALSE(mean.go({1, 1, 3, 1, 2, 2}).monitor->has_diverged());
}

class SavedStates : public InFolderOfCheckpoints {
 protected:
  TrainerOptions saving_every_step() const {
    TrainerOptions run;
    run.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_,
                                                                              .filename = "{step}",
                                                                              .save_top_k = -1,
                                                                              .every_n_train_steps = 1,
                                                                              .async = false})};
    return run;
  }
};

TEST_F(SavedStates, NoneIsWorseThanTheLastGoodOne) {
  Fit fit{.options = {.patience = 3, .window = 1, .factor = 3}, .run = saving_every_step()};
  fit.go({1, 2, 2.5, kNan, kNan, kNan});
  EXPECT_THAT(names(), ElementsAre("2", "1")) << "2.5 is more than halfway from 1 to 3";
}

TEST_F(SavedStates, ALossThatIsFiniteDoesNotHideAWeightThatIsNot) {
  Fit fit{.options = {.patience = 2}, .run = saving_every_step(), .trains = true};
  fit.go({1, 3e38F, 3e38F, 1, 1});  // without a loss scale the weight becomes -inf
  EXPECT_THAT(names(), ElementsAre("2", "1"));
}

TEST_F(SavedStates, WithoutAFactorOnlyStepsThatAreNotFiniteAreBad) {
  Fit fit{.options = {.patience = 3, .window = 1, .factor = 0}, .run = saving_every_step()};
  fit.go({1, 100, kNan});
  EXPECT_THAT(names(), ElementsAre("2", "1"));
}

TEST_F(SavedStates, NoneHasAWeightThatIsNotFinite) {
  struct Spoils final : Callback {
    void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
      if (batch.global_step == 2) trainer.module()->parameters().at(0).data().fill_(kNan);
    }
  };
  Fit fit{.options = {.patience = 3}, .run = saving_every_step()};
  fit.run.callbacks.push_back(std::make_shared<Spoils>());
  fit.go({1, 1});
  EXPECT_THAT(names(), ElementsAre("1"));
}

TEST_F(SavedStates, AResumedRunEndsWhereTheUninterruptedOneDoes) {
  const std::vector<float> losses{1, 1, 1, 1, 3, 3, 3};
  const DivergenceMonitorOptions options{.window = 3, .factor = 2};
  Fit whole{.options = options};
  EXPECT_EQ(whole.go(losses).result.steps, 6);
  EXPECT_TRUE(whole.monitor->has_diverged());
  Fit before{.options = options, .run = saving_every_step()};
  before.run.max_steps = 4;
  before.go(losses);
  Fit resumed{.options = options};
  resumed.go(losses, folder_);
  EXPECT_EQ(resumed.monitor->reason(), whole.monitor->reason());
  EXPECT_EQ(resumed.result.steps, 6);
}

TEST(DivergenceMonitor, AStateKeepsAsManyLossesAsTheWindowHas) {
  const StateDict state{{"bad_steps", int64_t{0}}, {"recent", StateList{1.0, 2.0, 3.0}}, {"reason", ""}};
  for (const int64_t window : {2, 3, 4}) {
    DivergenceMonitor monitor({.window = window});
    monitor.load_state_dict(StateReader(state));
    EXPECT_EQ(StateReader(monitor.state_dict()).at("recent").size(), std::min<int64_t>(window, 3));
  }
}

TEST(DivergenceMonitor, RefusesOptionsOutOfRange) {
  for (const DivergenceMonitorOptions& wrong : std::vector<DivergenceMonitorOptions>{
           {.patience = 0}, {.window = 0}, {.factor = 1}, {.factor = kNan}, {.factor = -2}})
    EXPECT_THAT(error_of([&] { DivergenceMonitor monitor(wrong); }), HasSubstr("DivergenceMonitor: "));
}

}  // namespace
}  // namespace mantissa::divergence_monitor_test
