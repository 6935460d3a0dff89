#include "mantissa/trainer/metrics.h"

#include <cmath>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/trainer/loop/run_metrics_internal.h"
#include "mantissa/trainer/loop/step_times_internal.h"

namespace mantissa::metrics_test {
namespace {

TEST(MeanMetrics, WeighsByBatchSizeSoAnOddLastBatchCountsAsItShould) {
  MeanMetrics metrics;
  metrics.add("loss", torch::tensor(1.0F), 3);
  metrics.add("loss", torch::tensor(5.0F, at::kBFloat16), 1);
  EXPECT_DOUBLE_EQ(metrics.compute().at("loss"), 2.0);
}

TEST(MeanMetrics, RefusesMoreThanOneNumber) {
  MeanMetrics metrics;
  EXPECT_THROW(metrics.add("loss", torch::ones(2), 1), c10::ValueError);
  EXPECT_THROW(metrics.add("loss", at::Tensor(), 1), c10::ValueError);
  EXPECT_TRUE(metrics.compute().empty());
}

TEST(FormatMetric, StaysShort) {
  EXPECT_EQ(format_metric(0.98765), "0.9877");
  EXPECT_EQ(format_metric(-12345.0), "-12345.0000");
  EXPECT_EQ(format_metric(1.5e38), "1.500e+38");
  EXPECT_EQ(format_metric(-std::nan("")), "nan");
  EXPECT_EQ(format_metric(-HUGE_VAL), "-inf");
}

TEST(MeanMetrics, KeepsNan) {
  MeanMetrics metrics;
  metrics.add("loss", -std::nan(""), 1);
  metrics.add("loss", 1.0, 1);
  const double mean = metrics.compute().at("loss");
  EXPECT_TRUE(std::isnan(mean));
  EXPECT_FALSE(std::signbit(mean)) << "a file would say -nan";
}

TEST(MeanMetrics, LeavesOutWhatWeighsNothingAndForgetsOnReset) {
  MeanMetrics metrics;
  metrics.add("empty", 1.0, 0);
  metrics.add("full", torch::ones({1}), 2);
  EXPECT_EQ(metrics.compute(), (Metrics{{"full", 1.0}}));
  metrics.reset();
  EXPECT_TRUE(metrics.compute().empty());
}

TEST(MeanMetrics, AddsWhatAnotherHas) {
  MeanMetrics metrics, other;
  metrics.add("loss", 1.0, 3);
  other.add("loss", 5.0, 1);
  other.add("accuracy", 0.5, 2);
  metrics.add(other);
  metrics.add(MeanMetrics());
  EXPECT_EQ(metrics.compute(), (Metrics{{"accuracy", 0.5}, {"loss", 2.0}}));
}

TEST(MeanMetrics, SumsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  MeanMetrics metrics;
  metrics.add("loss", torch::tensor(1.0F).cuda(), 3);
  metrics.add("loss", torch::tensor(5.0F).cuda(), 1);
  EXPECT_DOUBLE_EQ(metrics.compute().at("loss"), 2.0);
  MeanMetrics other;
  other.add(metrics);
  other.add(metrics);
  EXPECT_DOUBLE_EQ(other.compute().at("loss"), 2.0);
}

TEST(MeanMetrics, AddsWhatAnotherHasOnADevice) {
  MeanMetrics metrics, other;  // a meta tensor has no values, but stays on its device like CUDA's
  other.add("loss", torch::ones({}, at::kMeta), 1);
  metrics.add(other);
  EXPECT_TRUE(StateReader(metrics.state_dict()).at("loss").find("device").has_value());
}

TEST(MeanMetrics, ASavedWeightMayBeAnyPositiveNumber) {
  MeanMetrics metrics, resumed;
  metrics.add("loss", 3.0, 0.25);
  const StateDict state = metrics.state_dict();
  resumed.load_state_dict(StateReader(state));
  EXPECT_EQ(resumed.compute().at("loss"), 3.0);
}

TEST(StepTimes, TheMedianIsOfTheTimesAndTheRateOfAll) {
  StepTimes times;
  EXPECT_EQ(times.median_ms(), 0);
  EXPECT_EQ(times.samples_per_second(), 0);
  for (const double ms : {5.0, 1.0, 30.0}) times.add(ms, 9);
  EXPECT_EQ(times.median_ms(), 5);
  EXPECT_EQ(times.samples_per_second(), 750);
  for (int i = 0; i < 10'000; ++i) times.add(2, 1);
  EXPECT_EQ(times.median_ms(), 2);
}

TEST(RunMetrics, AResumedRunKnowsTheValidationOfItsEpoch) {
  RunMetrics saved, resumed;
  saved.set_validation({{"val_loss", 2.0}});
  StateDict state;
  saved.save(state);
  Differences differences;
  resumed.load(StateReader(state), differences);
  resumed.end_epoch();
  EXPECT_EQ(resumed.of_epoch(), (Metrics{{"val_loss", 2.0}}));
  EXPECT_EQ(resumed.newest().at("val_loss"), 2.0);
}

TEST(MeanMetrics, WeighsWhatIsOnADevice) {
  MeanMetrics metrics;  // a meta tensor has no values, but stays on its device like CUDA's
  for (const double weight : {3.0, 2.0}) metrics.add("loss", torch::ones({}, at::kMeta), weight);
  EXPECT_EQ(StateReader(metrics.state_dict()).at("loss").at("weight").to_double(), 5);
}

}  // namespace
}  // namespace mantissa::metrics_test
