// Tests that a fit begins without what its callbacks remember of an earlier one, and how their states are read.
#include <chrono>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/callbacks/divergence_monitor.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/learning_rate_monitor.h"
#include "mantissa/trainer/callbacks/precision_monitor.h"
#include "mantissa/trainer/callbacks/timer.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::later_fits_test {
namespace {

using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The loss of each batch is its value.
struct Losses : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    if (throws_at == batch.data.item<float>()) throw std::runtime_error("training_step failed");
    if (is_left_out(index)) return {};
    return (net->weight * 0).sum() + batch.data.sum();
  }
  virtual bool is_left_out(int64_t /*index*/) const { return false; }
};

FitResult fit(const std::shared_ptr<Callback>& callback, std::vector<float> losses, TrainerOptions run = {},
              float throws_at = -kInf) {
  Losses task;
  task.throws_at = throws_at;
  run.device = "cpu";
  run.callbacks.push_back(callback);
  ListLoader train = loader_of(std::move(losses));
  return Trainer(run).fit(task, train);
}

TEST(LaterFits, EarlyStoppingForgetsTheBestScoreAndItsVerdict) {
  for (const char* mode : {"min", "max"}) {
    const auto stopping = std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = "train_loss", .patience = 1, .mode = mode});
    EXPECT_EQ(stopping->best_score(), mode == std::string("min") ? HUGE_VAL : -HUGE_VAL) << "before a fit";
    const float sign = mode == std::string("min") ? 1 : -1;
    EXPECT_EQ(fit(stopping, {sign * 1}, {.max_epochs = 4}).epochs, 2);
    EXPECT_EQ(stopping->wait_count(), 1);
    const FitResult again = fit(stopping, {sign * 5}, {.max_epochs = 1});
    EXPECT_EQ(again.stopped_by, "");
    EXPECT_EQ(stopping->best_score(), sign * 5);
    EXPECT_EQ(stopping->wait_count(), 0);
    EXPECT_EQ(stopping->stopping_reason(), EarlyStoppingReason::kNotStopped);
    EXPECT_EQ(stopping->stopped_epoch(), std::nullopt);
  }
}

TEST(LaterFits, EarlyStoppingNamesTheSideOfItsThresholds) {
  const auto reason = [](EarlyStoppingOptions options) {
    options.monitor = "train_loss";
    return fit(std::make_shared<EarlyStopping>(options), {4}, {.max_epochs = 2}).stopped_by;
  };
  EXPECT_THAT(reason({.mode = "min", .stopping_threshold = 5}),
              HasSubstr("is 4, below the stopping_threshold 5"));
  EXPECT_THAT(reason({.mode = "max", .stopping_threshold = 3}),
              HasSubstr("is 4, above the stopping_threshold 3"));
  EXPECT_THAT(reason({.mode = "min", .divergence_threshold = 3}),
              HasSubstr("is 4, above the divergence_threshold 3"));
  EXPECT_THAT(reason({.mode = "max", .divergence_threshold = 5}),
              HasSubstr("is 4, below the divergence_threshold 5"));
}

TEST(LaterFits, EarlyStoppingsStateHasAKnownReason) {
  const auto error = [](int64_t reason) {
    EarlyStopping stopping({.monitor = "x"});
    const StateDict state{{"wait_count", int64_t{0}},
                          {"best_score", 1.0},
                          {"stopping_reason", reason},
                          {"stopping_reason_message", "because"}};
    return error_of([&] { stopping.load_state_dict(StateReader(state)); });
  };
  EXPECT_EQ(error(4), "no error");
  EXPECT_THAT(error(5), HasSubstr("stopping_reason"));
}

TEST(LaterFits, ADivergedRunsMonitorBeginsAnew) {
  const auto monitor = std::make_shared<DivergenceMonitor>(DivergenceMonitorOptions{.patience = 1});
  EXPECT_EQ(fit(monitor, {kNan, 1}).steps, 1);
  EXPECT_TRUE(monitor->has_diverged());
  EXPECT_EQ(fit(monitor, {1, 1}).steps, 2);
  EXPECT_FALSE(monitor->has_diverged());
}

TEST(LaterFits, AWindowThatAnErrorEndsDoesNotCountInTheNextFit) {
  const auto monitor =
      std::make_shared<DivergenceMonitor>(DivergenceMonitorOptions{.window = 1, .factor = 2});
  EXPECT_THROW(fit(monitor, {100, 2}, {.accumulate_grad_batches = 2}, /*throws_at=*/2), std::runtime_error);
  fit(monitor, {1, 1}, {.accumulate_grad_batches = 2});
  EXPECT_EQ(StateReader(monitor->state_dict()).at("first_mean").to_double(), 1);
}

TEST(LaterFits, TheLossOfAWindowIsTheMeanOfItsBatches) {
  const auto monitor =
      std::make_shared<DivergenceMonitor>(DivergenceMonitorOptions{.window = 1, .factor = 2});
  fit(monitor, {2, 4}, {.accumulate_grad_batches = 2});
  EXPECT_EQ(StateReader(monitor->state_dict()).at("first_mean").to_double(), 3);
}

TEST(LaterFits, AWindowWithoutALossIsNoDivergence) {
  struct LeavesOut final : Losses {
    bool is_left_out(int64_t index) const override { return index == 1; }
  } task;
  const auto monitor = std::make_shared<DivergenceMonitor>(DivergenceMonitorOptions{.patience = 1});
  ListLoader train = loader_of({1, 1, 1});
  EXPECT_EQ(Trainer({.device = "cpu", .callbacks = {monitor}}).fit(task, train).steps, 3);
  EXPECT_FALSE(monitor->has_diverged());
}

TEST(LaterFits, OneStepThatIsNotFiniteIsNotSeveral) {
  const auto once = std::make_shared<DivergenceMonitor>(DivergenceMonitorOptions{.patience = 1});
  fit(once, {kNan});
  EXPECT_EQ(once->reason(), "the loss or the gradients have not been finite for 1 step");
}

TEST(LaterFits, ATimerReportsInEachFit) {
  const auto timer = std::make_shared<Timer>(TimerOptions{.duration = milliseconds(1), .verbose = true});
  struct Slow final : Callback {
    void on_train_batch_start(Trainer&, const Batch&, int64_t) override {
      std::this_thread::sleep_for(milliseconds(2));
    }
  };
  for (int i = 0; i < 2; ++i) {
    testing::internal::CaptureStderr();
    fit(timer, {1, 1}, {.callbacks = {std::make_shared<Slow>()}});
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("Timer: the time limit of 0.001 s"));
  }
}

TEST(LaterFits, ATimersStageEndsBeforeOtherCallbacksHearOfTheEnd) {
  struct Looks final : Callback {
    explicit Looks(std::shared_ptr<Timer> watched) : timer(std::move(watched)) {}
    void look(Stage stage) {
      ++looked;
      const Timer::Seconds before = timer->time_elapsed(stage);
      std::this_thread::sleep_for(milliseconds(2));
      EXPECT_EQ(timer->time_elapsed(stage), before) << static_cast<int>(stage);
    }
    void on_validation_end(Trainer&) override { look(Stage::kValidate); }
    void on_test_end(Trainer&) override { look(Stage::kTest); }
    void on_predict_end(Trainer&) override { look(Stage::kPredict); }
    std::shared_ptr<Timer> timer;
    int looked = 0;
  };
  struct Predicts final : OneWeight {
    void test_step(const Batch&, int64_t) override {}
    c10::IValue predict_step(const Batch& batch, int64_t) override { return batch.data; }
  } task;
  const auto timer = std::make_shared<Timer>();
  const auto looks = std::make_shared<Looks>(timer);
  Trainer trainer({.device = "cpu", .callbacks = {timer, looks}});
  ListLoader data = loader_of({1});
  trainer.validate(task, data);
  trainer.test(task, data);
  trainer.predict(task, data);
  EXPECT_EQ(looks->looked, 3);
}

TEST(LaterFits, ALearningRateIsLoggedInTheFirstEpochOfEachFit) {
  const auto monitor =
      std::make_shared<LearningRateMonitor>(LearningRateMonitorOptions{.logging_interval = "epoch"});
  for (int i = 0; i < 2; ++i) {
    const auto logger = std::make_shared<RecordingLogger>();
    fit(monitor, {1}, {.loggers = {logger}, .log_every_n_steps = 0});
    EXPECT_THAT(logger->lines, Contains(HasSubstr("lr-SGD=1"))) << i;
  }
}

TEST(LaterFits, ALearningRateMonitorsStateIsReadFromBeforeTheFirstEpochOn) {
  const auto error = [](int64_t epoch) {
    LearningRateMonitor monitor;
    const StateDict state{{"logged_epoch", epoch}};
    return error_of([&] { monitor.load_state_dict(StateReader(state)); });
  };
  EXPECT_EQ(error(-1), "no error");
  EXPECT_THAT(error(-2), HasSubstr("logged_epoch"));
}

TEST(LaterFits, EachOptionOfALearningRateMonitorAddsItsOwnValue) {
  const auto lines = [](LearningRateMonitorOptions options) {
    const auto logger = std::make_shared<RecordingLogger>();
    options.logging_interval = "step";
    fit(std::make_shared<LearningRateMonitor>(options), {1}, {.loggers = {logger}, .log_every_n_steps = 1});
    return logger->lines.at(0);
  };
  EXPECT_THAT(lines({.log_momentum = true}), HasSubstr(" lr-SGD-momentum=0 "));
  EXPECT_THAT(lines({.log_weight_decay = true}), HasSubstr(" lr-SGD-weight_decay=0 "));
}

TEST(LaterFits, AnAverageIsReadOnlyDuringAFit) {
  EMAWeightAveraging average;
  const StateDict state{{"x", 1.0}};
  EXPECT_THAT(error_of([&] { average.load_state_dict(StateReader(state)); }),
              HasSubstr("there is no average yet; call it after on_fit_start()"));
}

TEST(LaterFits, AStateThatIsNoAveragesIsRefused) {
  const auto average = std::make_shared<EMAWeightAveraging>();
  fit(average, {1});
  const StateDict state{{"x", 1.0}};
  EXPECT_THAT(error_of([&] { average->load_state_dict(StateReader(state)); }), HasSubstr("num_updates"));
}

/// Sees the weight in each validation.
struct SeesWeights final : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    if (fails && index == 1) throw std::runtime_error("training_step failed");
    return OneWeight::training_step(batch, index);
  }
  void validation_step(const Batch&, int64_t) override { seen.push_back(weight()); }
  std::vector<double> seen;
  bool fails = false;
};

TEST(LaterFits, AValidationAfterAFitSeesTheModelAsItIs) {
  for (const bool fails : {false, true}) {
    SeesWeights task;
    task.fails = fails;
    const auto average =
        std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}});
    Trainer trainer({.device = "cpu", .num_sanity_val_steps = 0, .callbacks = {average}});
    ListLoader train = loader_of({1, 1}), val = loader_of({1});
    if (fails) {
      EXPECT_THROW(trainer.fit(task, train), std::runtime_error);
    } else {
      trainer.fit(task, train);
    }
    task.net->weight.data().fill_(7);
    trainer.validate(task, val);
    EXPECT_THAT(task.seen, ElementsAre(7));
    EXPECT_EQ(task.weight(), 7);
  }
}

TEST(LaterFits, APrecisionMonitorsIntervalsBeginAtOne) {
  const auto error = [](PrecisionMonitorOptions options) {
    return error_of([&] { PrecisionMonitor monitor(options); });
  };
  EXPECT_EQ(error({.error_every_n_steps = 1}), "no error");
  EXPECT_THAT(error({.error_every_n_steps = 0}), HasSubstr("error_every_n_steps=0; give 1 or more"));
}

}  // namespace
}  // namespace mantissa::later_fits_test
