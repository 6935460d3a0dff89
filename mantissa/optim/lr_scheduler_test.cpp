#include "mantissa/optim/lr_scheduler.h"

#include "mantissa/core/test_support_internal.h"

namespace mantissa::lr_scheduler_test {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr WarmupCosineOptions kOptions{.warmup_steps = 4, .total_steps = 12, .final_factor = 0.1};

SGD two_group_optimizer() {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{at::zeros({2}).set_requires_grad(true)});
  groups.emplace_back(std::vector<at::Tensor>{at::zeros({3}).set_requires_grad(true)},
                      std::make_unique<SGDOptions>(10.0));
  return SGD(groups, SGDOptions(1.0));
}

double rate(SGD& optimizer, size_t group) { return optimizer.param_groups()[group].options().get_lr(); }

TEST(WarmupCosine, FactorAtTheSeams) {
  EXPECT_DOUBLE_EQ(warmup_cosine_factor(kOptions, 0), 0.25);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor(kOptions, 3), 1);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor(kOptions, 4), 1);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor(kOptions, 8), 0.55);
  EXPECT_GT(warmup_cosine_factor(kOptions, 11), 0.1);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor(kOptions, 12), 0.1);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor(kOptions, 1'000'000), 0.1);
}

TEST(WarmupCosine, WithoutWarmupStartsAtTheBaseRate) {
  EXPECT_DOUBLE_EQ(warmup_cosine_factor({.total_steps = 2}, 0), 1);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor({.total_steps = 2}, 1), 0.5);
  EXPECT_DOUBLE_EQ(warmup_cosine_factor({.total_steps = 2}, 2), 0);
}

TEST(WarmupCosineLR, SetsEveryGroupsRateBeforeItsStep) {
  SGD optimizer = two_group_optimizer();
  WarmupCosineLR schedule(optimizer, kOptions);
  for (int64_t step = 0; step < 15; ++step) {
    EXPECT_EQ(schedule.steps_taken(), step);
    EXPECT_DOUBLE_EQ(rate(optimizer, 0), warmup_cosine_factor(kOptions, step)) << step;
    EXPECT_DOUBLE_EQ(rate(optimizer, 1), 10 * warmup_cosine_factor(kOptions, step)) << step;
    schedule.step();
  }
}

TEST(WarmupCosineLR, ResumesWhereItStopped) {
  SGD straight = two_group_optimizer(), resumed = two_group_optimizer();
  WarmupCosineLR a(straight, kOptions), b(resumed, kOptions);
  for (int i = 0; i < 6; ++i) a.step();
  b.resume_at(a.steps_taken());
  EXPECT_EQ(rate(straight, 1), rate(resumed, 1));
  a.step();
  b.step();
  EXPECT_EQ(rate(straight, 1), rate(resumed, 1));
  EXPECT_THROW(b.resume_at(-1), c10::ValueError);
  EXPECT_EQ(b.steps_taken(), 7);
  b.resume_at(0);
  EXPECT_EQ(rate(resumed, 1), 10 * warmup_cosine_factor(kOptions, 0));
}

TEST(WarmupCosineLR, RefusesOptionsOutOfRangeAndLeavesTheRates) {
  SGD optimizer = two_group_optimizer();
  for (const WarmupCosineOptions& options :
       std::vector<WarmupCosineOptions>{{.warmup_steps = -1, .total_steps = 5},
                                        {.warmup_steps = 5, .total_steps = 5},
                                        {.total_steps = 0},
                                        {.total_steps = 5, .final_factor = -0.1},
                                        {.total_steps = 5, .final_factor = 1.1},
                                        {.total_steps = 5, .final_factor = NAN}}) {
    EXPECT_THROW(WarmupCosineLR(optimizer, options), c10::ValueError)
        << options.warmup_steps << options.total_steps;
  }
  EXPECT_EQ(rate(optimizer, 0), 1);
  EXPECT_EQ(rate(optimizer, 1), 10);
  for (const double final_factor : {0.0, 1.0})
    EXPECT_NO_THROW(WarmupCosineLR(optimizer, {.total_steps = 5, .final_factor = final_factor}));
}

TEST(WarmupCosineLR, RefusesAGroupAddedLater) {
  SGD optimizer = two_group_optimizer();
  WarmupCosineLR schedule(optimizer, kOptions);
  optimizer.add_param_group(OptimizerParamGroup({at::zeros({1}).set_requires_grad(true)}));
  const auto is_refused = testing::HasSubstr("the optimizer now has 3 parameter groups, and had 2");
  EXPECT_THAT(error_of([&] { schedule.step(); }), is_refused);
  EXPECT_THAT(error_of([&] { schedule.resume_at(3); }), is_refused);
  EXPECT_EQ(schedule.steps_taken(), 0);
  EXPECT_EQ(rate(optimizer, 0), warmup_cosine_factor(kOptions, 0));
}

}  // namespace
}  // namespace mantissa::lr_scheduler_test
