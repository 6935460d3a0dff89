#include "mantissa/amp/step_result.h"

#include <gtest/gtest.h>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/host_reads_internal.h"

namespace mantissa::step_result_test {
namespace {

/// A flag that the host must read with item(), like one on a GPU: its dtype differs from the scaler's.
at::Tensor on_device(double value) { return torch::full({}, value, at::kDouble); }

TEST(StepResult, KnowsWhatTheHostKnows) {
  const StepResult taken, skipped(SkipCause::kNonFiniteGradients, "fc.weight"), none(SkipCause::kNoGradients);
  EXPECT_TRUE(taken.is_known() && skipped.is_known() && none.is_known());
  EXPECT_FALSE(taken.skipped());
  EXPECT_EQ(taken.cause(), SkipCause::kNone);
  EXPECT_TRUE(skipped.skipped() && none.skipped());
  EXPECT_EQ(skipped.first_nonfinite_parameter(), "fc.weight");
  EXPECT_EQ(none.cause(), SkipCause::kNoGradients);
  EXPECT_EQ(to_string(SkipCause::kNone), "not skipped");
  EXPECT_EQ(to_string(SkipCause::kNoGradients), "no gradients");
  EXPECT_EQ(to_string(SkipCause::kNonFiniteGradients), "non-finite gradients");
}

TEST(StepResult, ReadsTheFlagOnceWhenItIsAskedFor) {
  int names = 0;
  const HostReads reads;
  const StepResult step(on_device(1), [&] {
    ++names;
    return std::string("fc.weight");
  });
  const StepResult copy = step;
  EXPECT_FALSE(step.is_known());
  EXPECT_TRUE(step.found_inf().defined());
  EXPECT_EQ(reads.count(), 0);
  EXPECT_TRUE(copy.skipped());
  EXPECT_EQ(step.cause(), SkipCause::kNonFiniteGradients);
  EXPECT_EQ(step.first_nonfinite_parameter(), "fc.weight");
  EXPECT_TRUE(step.is_known());
  EXPECT_FALSE(step.found_inf().defined());
  EXPECT_EQ(reads.count(), 1) << "for all copies together";
  EXPECT_EQ(names, 1);
}

TEST(StepResult, AsksForNoNameOfAStepThatWasTaken) {
  const StepResult step(on_device(0), [] {
    ADD_FAILURE();
    return std::string();
  });
  EXPECT_FALSE(step.skipped());
  EXPECT_EQ(step.cause(), SkipCause::kNone);
}

TEST(StepResult, AFlagInTheHostsMemoryIsKnownAtOnce) {
  const HostReads reads;
  const StepResult step(torch::ones({}), [] { return std::string("w"); });
  EXPECT_TRUE(step.is_known());
  EXPECT_TRUE(step.skipped());
  EXPECT_EQ(reads.count(), 0);
  EXPECT_THROW(StepResult(at::Tensor(), nullptr), c10::ValueError);
}

TEST(StepResult, NeedsTheGradientsOnlyUntilItIsRead) {
  const auto gradients = std::make_shared<int>();
  const StepResult step(on_device(1), [gradients] { return std::string("w"); });
  EXPECT_GT(gradients.use_count(), 1);
  EXPECT_EQ(step.first_nonfinite_parameter(), "w");
  EXPECT_EQ(gradients.use_count(), 1);
}

TEST(SkippedSteps, KeepFewOfTheFlags) {
  SkippedSteps steps(0);
  const at::Tensor first = on_device(1);
  steps.add(StepResult(first, nullptr));
  EXPECT_EQ(first.use_count(), 2);
  for (int i = 1; i < 1023; ++i) steps.add(StepResult(on_device(0), nullptr));
  EXPECT_EQ(first.use_count(), 2);
  steps.add(StepResult(on_device(1), nullptr));
  EXPECT_EQ(first.use_count(), 1) << "1024 flags have been added up";
  steps.add(StepResult(on_device(1), nullptr));
  EXPECT_EQ(steps.count(), 3);
}

TEST(SkippedSteps, AreReadTogether) {
  SkippedSteps steps(3);
  const HostReads reads;
  steps.add(StepResult());
  steps.add(StepResult(SkipCause::kNoGradients));
  for (int i = 0; i < 3000; ++i) steps.add(StepResult(on_device(i % 3 == 0 ? 5 : 0), nullptr));
  EXPECT_EQ(reads.count(), 0);
  const at::Tensor tensor = steps.count_on_device();
  EXPECT_EQ(reads.count(), 0);
  EXPECT_EQ(steps.count(), 1004);
  EXPECT_EQ(reads.count(), 1);
  EXPECT_EQ(steps.count(), 1004) << "nothing is counted twice";
  EXPECT_EQ(reads.count(), 1);
  EXPECT_EQ(tensor.item<double>(), 1004);
  EXPECT_EQ(steps.count_on_device().item<double>(), 1004);
  steps.add(StepResult(on_device(1), nullptr));
  EXPECT_EQ(steps.count_on_device().item<double>(), 1005);
  EXPECT_EQ(steps.count(), 1005);
}

}  // namespace
}  // namespace mantissa::step_result_test
