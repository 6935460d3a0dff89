// Tests of the values that options of the Trainer can have.
#include "mantissa/trainer/trainer_options.h"

#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/trainer/batch_limit.h"

namespace mantissa::trainer_options_test {
namespace {

using testing::HasSubstr;

TEST(BatchLimit, AShareThatMeansABatchIsOne) {
  EXPECT_EQ(BatchLimit(0.3).of(10, "x"), 3) << "though 0.3 * 10 is below 3";
  EXPECT_EQ(BatchLimit(0.29).of(10, "x"), 2);
  EXPECT_EQ(BatchLimit(0.0).of(10, "x"), 0);
  EXPECT_EQ(BatchLimit(7).of(3, "x"), 3);
  EXPECT_TRUE(BatchLimit(1.0).is_all());
  EXPECT_FALSE(BatchLimit(1).is_all());
}

TEST(BatchLimit, EveryLimitOfATrainerIsChecked) {
  const auto error = [](const TrainerOptions& options) { return error_of([&] { check(options); }); };
  EXPECT_THAT(error({.limit_train_batches = -1}), HasSubstr("limit_train_batches=-1 is negative"));
  EXPECT_THAT(error({.limit_val_batches = -1}), HasSubstr("limit_val_batches=-1 is negative"));
  EXPECT_THAT(error({.limit_test_batches = -1}), HasSubstr("limit_test_batches=-1 is negative"));
  EXPECT_THAT(error({.limit_predict_batches = -1}), HasSubstr("limit_predict_batches=-1 is negative"));
  EXPECT_THAT(error({.overfit_batches = -1}), HasSubstr("overfit_batches=-1 is negative"));
  EXPECT_THAT(error({.val_check_interval = 1.5}), HasSubstr("val_check_interval=1.5 is a share"));
}

TEST(AccumulationSchedule, HoldsFromItsEpochOn) {
  const AccumulationSchedule schedule(std::map<int64_t, int64_t>{{2, 4}, {5, 1}});
  EXPECT_EQ(schedule.at(0), 1);
  EXPECT_EQ(schedule.at(2), 4);
  EXPECT_EQ(schedule.at(4), 4);
  EXPECT_EQ(schedule.at(7), 1);
  EXPECT_FALSE(schedule.is_always(1));
  EXPECT_TRUE(AccumulationSchedule(3).is_always(3));
  EXPECT_TRUE(AccumulationSchedule(std::map<int64_t, int64_t>{{0, 3}}).is_always(3));
}

TEST(AccumulationSchedule, IsWrittenInBraces) {
  const auto text = [](const TrainerOptions& options) { return options.accumulate_grad_batches.to_string(); };
  EXPECT_EQ(text({.accumulate_grad_batches = 4}), "4");
  EXPECT_EQ(text({.accumulate_grad_batches = {4}}), "4");
  EXPECT_EQ(text({.accumulate_grad_batches = {{4, 2}}}), "{4: 2}");
  EXPECT_EQ(text({.accumulate_grad_batches = {{0, 4}, {4, 8}}}), "{0: 4, 4: 8}");
  EXPECT_EQ(text({.accumulate_grad_batches = {{0, 4}, {4, 8}, {6, 1}}}), "{0: 4, 4: 8, 6: 1}");
}

}  // namespace
}  // namespace mantissa::trainer_options_test
