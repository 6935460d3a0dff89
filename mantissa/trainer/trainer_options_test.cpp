// Tests of the values that options of the Trainer can have.
#include "mantissa/trainer/trainer_options.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/registry.h"
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

/// Returns what is wrong with the options, without constructing a Trainer.
std::string wrong(const TrainerOptions& options) {
  return error_of([&] { check(options); });
}

using std::chrono::milliseconds;

TEST(TrainerOptions, LengthsEndWhereTheirErrorsSay) {
  EXPECT_THAT(wrong({.max_epochs = -2}), HasSubstr("got max_epochs=-2, max_steps=-1"));
  EXPECT_THAT(wrong({.max_steps = -2}), HasSubstr("got max_epochs=1, max_steps=-2"));
  EXPECT_THAT(wrong({.max_epochs = -1}), HasSubstr("training would never end"));
  EXPECT_EQ(wrong({.max_epochs = -1, .max_steps = 0}), "no error");
  EXPECT_EQ(wrong({.max_epochs = 0, .max_steps = -1}), "no error");
  EXPECT_EQ(wrong({.max_epochs = -1, .max_time = milliseconds(1)}), "no error");
  EXPECT_THAT(wrong({.max_time = milliseconds(0)}), HasSubstr("max_time is 0 ms; give a time above 0"));
  EXPECT_THAT(wrong({.max_time = milliseconds(-5)}), HasSubstr("max_time is -5 ms"));
  EXPECT_THAT(wrong({.min_epochs = -1}), HasSubstr("got min_epochs=-1, min_steps=0"));
  EXPECT_THAT(wrong({.min_steps = -1}), HasSubstr("got min_epochs=0, min_steps=-1"));
}

TEST(TrainerOptions, TheLeastLengthIsAtMostTheLargest) {
  EXPECT_THAT(wrong({.max_epochs = 2, .min_epochs = 3}), HasSubstr("min_epochs=3 is above max_epochs=2"));
  EXPECT_THAT(wrong({.max_epochs = 0, .min_epochs = 1}), HasSubstr("min_epochs=1 is above max_epochs=0"));
  EXPECT_EQ(wrong({.max_epochs = 2, .min_epochs = 2}), "no error");
  EXPECT_EQ(wrong({.max_epochs = -1, .max_steps = 1, .min_epochs = 3}), "no error");
  EXPECT_THAT(wrong({.max_steps = 2, .min_steps = 3}), HasSubstr("min_steps=3 is above max_steps=2"));
  EXPECT_THAT(wrong({.max_steps = 0, .min_steps = 1}), HasSubstr("min_steps=1 is above max_steps=0"));
  EXPECT_EQ(wrong({.max_steps = 2, .min_steps = 2}), "no error");
  EXPECT_EQ(wrong({.min_steps = 3}), "no error");
}

TEST(TrainerOptions, ValidationsHaveAnInterval) {
  EXPECT_THAT(wrong({.val_check_interval = 0}), HasSubstr("val_check_interval is 0"));
  EXPECT_THAT(wrong({.val_check_interval = 0.0}), HasSubstr("val_check_interval is 0"));
  EXPECT_THAT(wrong({.check_val_every_n_epoch = 0}),
              HasSubstr("check_val_every_n_epoch must be at least 1, got 0"));
  EXPECT_EQ(wrong({.val_check_interval = 0.5, .check_val_every_n_epoch = 2}), "no error");
  EXPECT_EQ(wrong({.val_check_interval = 3, .check_val_every_n_epoch = std::nullopt}), "no error");
  EXPECT_THAT(wrong({.val_check_interval = 0.5, .check_val_every_n_epoch = std::nullopt}),
              HasSubstr("it is the share 0.5; give an integer"));
  EXPECT_EQ(wrong({.num_sanity_val_steps = -1}), "no error");
  EXPECT_THAT(wrong({.num_sanity_val_steps = -2}), HasSubstr("num_sanity_val_steps is a count"));
}

TEST(TrainerOptions, OtherCountsStartAt0) {
  EXPECT_THAT(wrong({.fast_dev_run = -1}), HasSubstr("fast_dev_run is a number of batches"));
  EXPECT_EQ(wrong({.gradient_clip_val = 0}), "no error");
  EXPECT_THAT(wrong({.gradient_clip_val = -1e-9}), HasSubstr("gradient_clip_val must be at least 0"));
  EXPECT_THAT(wrong({.gradient_clip_val = std::nan("")}), HasSubstr("gradient_clip_val must be at least 0"));
  EXPECT_EQ(wrong({.log_every_n_steps = 0}), "no error");
  EXPECT_THAT(wrong({.log_every_n_steps = -1}), HasSubstr("log_every_n_steps is a count"));
}

TEST(TrainerOptions, NothingInAListIsNull) {
  EXPECT_THAT(wrong({.callbacks = {nullptr}}), HasSubstr("a callback is null"));
  EXPECT_THAT(wrong({.loggers = {nullptr}}), HasSubstr("one of the loggers is null"));
}

TEST(TrainerOptions, EachSettingOfANamedModeExcludesAPlugin) {
  const std::shared_ptr<Precision> plugin = make_precision("32-true", at::kCPU);
  EXPECT_EQ(wrong({.precision_plugin = plugin}), "no error");
  EXPECT_EQ(wrong({.amp_level = "O1"}), "no error") << "make_precision() checks it";
  for (const TrainerOptions& options :
       std::vector<TrainerOptions>{{.precision_options = {.growth_factor = 3}, .precision_plugin = plugin},
                                   {.amp_backend = "apex", .precision_plugin = plugin},
                                   {.amp_level = "O1", .precision_plugin = plugin}})
    EXPECT_THAT(wrong(options), HasSubstr("apply to modes chosen by name, not to a precision_plugin"));
}

TEST(TrainerOptions, AClipAlgorithmIsFoundInAnyCase) {
  EXPECT_EQ(parse_clip_algorithm("NORM"), GradientClipAlgorithm::kNorm);
  EXPECT_EQ(parse_clip_algorithm("Value"), GradientClipAlgorithm::kValue);
  EXPECT_THAT(error_of([] { parse_clip_algorithm("Valeu"); }),
              HasSubstr("unknown gradient_clip_algorithm 'Valeu'; did you mean 'value'?"));
}

TEST(BatchLimit, EndsWhereItsErrorSays) {
  const auto error = [](const BatchLimit& limit) { return error_of([&] { limit.check("x"); }); };
  for (const BatchLimit& good : {BatchLimit(0.0), BatchLimit(1.0), BatchLimit(0), BatchLimit(5)})
    EXPECT_EQ(error(good), "no error") << good.to_string();
  EXPECT_THAT(error(-0.25), HasSubstr("x=-0.25 is a share"));
  EXPECT_THAT(error(1.25), HasSubstr("x=1.25 is a share"));
  EXPECT_THAT(error(-1), HasSubstr("x=-1 is negative"));
}

TEST(BatchLimit, AShareThatLeavesNoBatchIsRefused) {
  const auto error = [](double share, int64_t total) {
    return error_of([&] { BatchLimit(share).of(total, "x"); });
  };
  EXPECT_THAT(error(0.1, 4), HasSubstr("x=0.1 of 4 batches leaves no batch; give at least 0.25"));
  EXPECT_EQ(error(0.25, 4), "no error");
  EXPECT_EQ(error(0.0, 4), "no error");
  EXPECT_EQ(error(0.1, 0), "no error");
  EXPECT_EQ(BatchLimit(0.1).of_at_least_one(4), 1);
  EXPECT_EQ(BatchLimit(0.75).of_at_least_one(4), 3);
}

TEST(AccumulationSchedule, EveryEntryIsChecked) {
  const auto error = [](const std::map<int64_t, int64_t>& entries) {
    return error_of([&] { AccumulationSchedule(entries).check(); });
  };
  EXPECT_EQ(error({{0, 1}, {3, 2}}), "no error");
  EXPECT_THAT(error({{0, 4}, {3, 0}}), HasSubstr("{0: 4, 3: 0} has {3: 0}"));
  EXPECT_THAT(error({{-1, 4}}), HasSubstr("has {-1: 4}"));
  EXPECT_THAT(error_of([] { AccumulationSchedule(0).check(); }), HasSubstr("at least 1, got 0"));
  EXPECT_FALSE(AccumulationSchedule(std::map<int64_t, int64_t>{{2, 3}}).is_always(3)) << "1 before epoch 2";
  EXPECT_TRUE(AccumulationSchedule(std::map<int64_t, int64_t>{{2, 1}}).is_always(1));
}

TEST(TrainerOptions, KernelsAndProductsAreCheckedBeforeARun) {
  EXPECT_THAT(wrong({.cpu_kernels = "none/of/these"}), HasSubstr("none/of/these"));
  PrecisionOptions products;
  products.float32_matmul_precision = "hihg";
  EXPECT_THAT(wrong({.precision_options = products}), HasSubstr("hihg"));
}

}  // namespace
}  // namespace mantissa::trainer_options_test
