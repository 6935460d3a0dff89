// Tests the parts of a run that count: its position, its metrics, and what a boundary decides from them.
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/trainer/loop/decisions_internal.h"
#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_metrics_internal.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"
#include "mantissa/trainer/loop/step_times_internal.h"
#include "mantissa/trainer/metrics.h"

namespace mantissa::progress_test {
namespace {

using testing::HasSubstr;

TEST(Progress, ResumesBeforeTheOpenWindow) {
  Progress progress;
  for (int i = 0; i < 3; ++i) progress.count_batch();
  progress.extend_window();
  progress.extend_window();
  EXPECT_EQ(progress.resumes_at().batches, 1);
  EXPECT_EQ(progress.resumes_at().total_batches, 1);
  EXPECT_FALSE(progress.resumes_exactly());
  progress.end_window();
  EXPECT_EQ(progress.resumes_at().total_batches, 3);
}

/// The state of a run with these numbers.
StateDict saved_at(int64_t epoch, int64_t batches, int64_t total, const std::string& per_epoch) {
  return {{"progress", StateDict{{"epoch", epoch},
                                 {"batches", batches},
                                 {"total_batches", total},
                                 {"global_step", total},
                                 {"skipped_steps", int64_t{0}},
                                 {"validated_batches", int64_t{-1}}}},
          {"exact", true},
          {"seconds", 0.0},
          {"setup", StateDict{{"number of batches an epoch", per_epoch}}}};
}

std::string refusal(const StateDict& state) {
  Progress progress;
  Differences differences;
  return error_of([&] { progress.load(StateReader(state), differences); });
}

TEST(Progress, EveryEpochThatIsOverHadABatch) {
  EXPECT_EQ(refusal(saved_at(1, 0, 1, "4")), "no error");
  EXPECT_THAT(refusal(saved_at(2, 0, 1, "4")), HasSubstr("is 2, which is above the 1 of total_batches"));
  EXPECT_EQ(refusal(saved_at(1, 1, 2, "4")), "no error");
  EXPECT_THAT(refusal(saved_at(2, 1, 2, "4")), HasSubstr("is 2, which is above the 1 of total_batches"));
  EXPECT_EQ(refusal(saved_at(7, 0, 0, "4")), "no error") << "another program may count epochs alone";
}

TEST(Progress, OfACheckpointThatKnowsNoRetriesHasNone) {
  Progress progress;
  Differences differences;
  const StateDict state = saved_at(1, 0, 4, "4");
  progress.load(StateReader(state), differences);
  EXPECT_EQ(progress.retries(), 0);
}

TEST(Progress, TheBatchesOfAnEpochAreACount) {
  const std::string largest = std::to_string(kMaxCount);
  for (const std::string& good : {std::string("0"), std::string("4"), largest})
    EXPECT_EQ(refusal(saved_at(1, 0, 1, good)), "no error") << good;
  for (const std::string& bad : {std::string(""), std::string("x"), std::string("4x"), std::string("-1"),
                                 std::to_string(kMaxCount + 1), largest + "0000000000"})
    EXPECT_THAT(refusal(saved_at(1, 0, 1, bad)), HasSubstr("is '" + bad + "'; a number from 0 to ")) << bad;
}

TEST(StepTimes, TheMedianIsTheMiddleOfTheLastTenThousand) {
  StepTimes few, many;
  for (const double ms : {5.0, 2.0, 4.0, 1.0, 3.0}) few.add(ms, 1);
  EXPECT_EQ(few.median_ms(), 3);
  for (int i = 0; i < 10'001; ++i) many.add(1, 1);
  for (int i = 0; i < 5'000; ++i) many.add(1, 1);
  for (int i = 0; i < 5'000; ++i) many.add(3, 1);
  EXPECT_EQ(many.median_ms(), 3) << "half of them are 1, and the upper one of the two in the middle counts";
}

/// A fit of epochs with 4 batches, each of which is a step.
struct Fit {
  explicit Fit(TrainerOptions given) : options(std::move(given)) { decisions.set_up(4, true); }
  void take(int batches) {
    for (int i = 0; i < batches; ++i) {
      progress.count_batch();
      progress.add_step(StepResult());
    }
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

TEST(Decisions, NoEpochsAreOverAtOnceAndLeaveNothingToValidate) {
  Fit fit({.max_epochs = 0});
  const Decision decision = fit.between_epochs(0);
  EXPECT_TRUE(decision.end);
  EXPECT_FALSE(decision.validate);
}

TEST(Decisions, TimeIsUpAtTheLimitItselfAndNotBefore) {
  StateDict state = saved_at(0, 0, 0, "4");
  state.insert_or_assign("seconds", 1e12);  // a double has no room for the microseconds that follow
  const auto is_up = [&](int64_t limit_ms) {
    Fit fit({.max_epochs = -1, .max_time = std::chrono::milliseconds(limit_ms)});
    Differences differences;
    fit.progress = Progress();
    fit.progress.load(StateReader(state), differences);
    return fit.between_epochs(0).end;
  };
  EXPECT_TRUE(is_up(1'000'000'000'000'000));
  EXPECT_FALSE(is_up(1'000'100'000'000'000));
}

TEST(Decisions, ASingleBatchIsValidatedWhereTheRunEnds) {
  Fit fit({.max_epochs = -1, .max_steps = 1});
  fit.take(1);
  EXPECT_TRUE(fit.between_epochs(0).validate);
}

TEST(Decisions, ValidatesEveryThirdEpoch) {
  Fit fit({.max_epochs = 9, .check_val_every_n_epoch = 3});
  for (int epoch = 0; epoch < 6; ++epoch) {
    fit.take(4);
    EXPECT_EQ(fit.decisions.is_validation_due(), epoch == 2 || epoch == 5) << epoch;
    fit.progress.end_epoch();
  }
}

TEST(RunMetrics, AMetricOfTrainingIsNewUntilTheNextBatch) {
  RunMetrics metrics;
  Progress progress;
  Strategy alone;
  metrics.begin_epoch();
  metrics.batch().add("loss", 2.0, 1);
  metrics.end_batch(/*ends_window=*/true);
  progress.count_batch();
  metrics.end_training(progress.now(), alone);
  EXPECT_EQ(metrics.value_now("loss", progress), 2.0);
  progress.count_batch();
  EXPECT_EQ(metrics.value_now("loss", progress), std::nullopt);
}

TEST(RunMetrics, AResumedRunKnowsTheLastEpochsMetrics) {
  RunMetrics saved, resumed;
  Strategy alone;
  saved.batch().add("loss", 2.0, 1);
  saved.end_batch(/*ends_window=*/true);
  saved.end_training({}, alone);
  StateDict state;
  saved.save(state);
  Differences differences;
  resumed.load(StateReader(state), differences);
  EXPECT_EQ(resumed.of_epoch(), (Metrics{{"loss", 2.0}}));
}

TEST(MeanMetrics, ASumOnADeviceCountsWithThatOfTheHost) {
  const auto entry = [](const at::Tensor& device) {
    return StateDict{{"x", StateDict{{"host", 1.0}, {"weight", 2.0}, {"device", device}}}};
  };
  MeanMetrics metrics;
  metrics.load_state_dict(StateReader(entry(torch::full({}, 3.0, at::kDouble))));
  EXPECT_EQ(metrics.compute(), (Metrics{{"x", 2.0}}));
  EXPECT_THAT(error_of([&] { metrics.load_state_dict(StateReader(entry(torch::ones({1}, at::kDouble)))); }),
              HasSubstr("is not a single number"));
}

TEST(FormatMetric, OfAHundredThousandHasAnExponent) {
  EXPECT_EQ(format_metric(99999.0), "99999.0000");
  EXPECT_EQ(format_metric(1e5), "1.000e+05");
}

/// Another process with the same metrics, whose sums are 10 times as large.
struct WithTenfold final : Strategy {
  int64_t world_size() const override { return 2; }
  at::Tensor all_reduce(at::Tensor values, ReduceOp op) override {
    return op == ReduceOp::kMax ? values
                                : values + values * torch::tensor({10.0, 1.0}).repeat({values.numel() / 2});
  }
};

TEST(MeanMetrics, OfSeveralProcessesEachHaveTheirOwnSumAndWeight) {
  MeanMetrics metrics;
  metrics.add("a", 1.0, 1);
  metrics.add("b", 4.0, 1);
  metrics.add("c", 6.0, 1);
  WithTenfold strategy;
  EXPECT_EQ(metrics.compute(strategy), (Metrics{{"a", 5.5}, {"b", 22.0}, {"c", 33.0}}));
}

}  // namespace
}  // namespace mantissa::progress_test
