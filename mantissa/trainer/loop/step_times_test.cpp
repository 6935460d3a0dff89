#include <gtest/gtest.h>

#include "mantissa/trainer/loop/step_times_internal.h"

namespace mantissa::step_times_test {
namespace {

TEST(StepTimes, TheMedianIsOfTheLastTenThousandSteps) {
  StepTimes times;
  EXPECT_EQ(times.median_ms(), 0) << "of no step";
  for (const double ms : {3.0, 1.0, 2.0}) {
    for (int i = 0; i < 10'000; ++i) times.add(ms, 1);
    EXPECT_EQ(times.median_ms(), ms);
  }
  EXPECT_EQ(times.samples_per_second(), 500) << "of all steps";
}

}  // namespace
}  // namespace mantissa::step_times_test
