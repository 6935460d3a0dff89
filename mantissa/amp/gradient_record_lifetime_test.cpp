#include <memory>
#include <optional>
#include <vector>

#include "mantissa/amp/gradient_record_internal.h"
#include "mantissa/amp/scaler_data_internal.h"
#include "mantissa/amp/test_support_internal.h"

// A record stays with its optimizer, and goes with it.
namespace mantissa::gradient_record_lifetime_test {
namespace {

using Net = TrackedNet;

/// A scaler that starts at 4 and doubles after every clean iteration.
TrackedScaler scaler() { return TrackedScaler({.init_scale = 4, .growth_interval = 1}); }

TEST(GradientRecord, KnowsItsOptimizerFromAnotherAtItsAddress) {
  const at::Tensor a = torch::ones({1}).set_requires_grad(true), b = torch::ones({1}).set_requires_grad(true);
  std::optional<torch::optim::SGD> sgd(std::in_place, std::vector<at::Tensor>{a}, 0.5);
  const GradientRecord record(*sgd);
  EXPECT_TRUE(record.belongs_to(*sgd));
  sgd->add_param_group(torch::optim::OptimizerParamGroup({b}));
  EXPECT_TRUE(record.belongs_to(*sgd)) << "with a group more it is the same";
  sgd.emplace(std::vector<at::Tensor>{b}, 0.5);
  EXPECT_FALSE(record.belongs_to(*sgd));
  EXPECT_FALSE(record.is_dead());
}

TEST(GradientRecord, AParameterThatMovedToAnotherGroupIsNoLongerTheOneItKnows) {
  const at::Tensor a = torch::ones({1}).set_requires_grad(true), b = torch::ones({1}).set_requires_grad(true);
  torch::optim::SGD sgd({a, b}, 0.5);
  const GradientRecord record(sgd);
  sgd.param_groups()[0].params().pop_back();
  sgd.add_param_group(torch::optim::OptimizerParamGroup({b}));
  EXPECT_FALSE(record.belongs_to(sgd));
}

TEST(GradientRecord, DiesWithItsParameters) {
  std::optional<Net> net(std::in_place);
  const GradientRecord record(net->sgd);
  net.reset();
  EXPECT_TRUE(record.is_dead());
  EXPECT_TRUE(record.named_parameters(nullptr).empty());
}

TEST(GradientRecord, AnOptimizerThatDiesWhileItWaitsHoldsNothingUp) {
  TrackedScaler s = scaler();
  Net stays;
  {
    Net dies;
    tracked_backward(s, stays.w.sum() + dies.w.sum());
    s.unscale_(dies.sgd);
  }
  s.step(stays.sgd);
  stays.sgd.zero_grad();
  tracked_backward(s, stays.w.sum());
  EXPECT_EQ(s.get_scale(), 8);
}

TEST(GradientRecord, AnOptimizerThatIsGoneWithItsUnscaledGradientsDoesNotHoldUpAStepThatWasTaken) {
  TrackedScaler s = scaler();
  Net stays;
  auto gone = std::make_unique<Net>();
  tracked_backward(s, stays.w.sum() + gone->w.sum());
  s.unscale_(gone->sgd);
  s.step(stays.sgd);
  gone.reset();
  s.begin_backward();
  EXPECT_EQ(s.get_scale(), 8);
}

TEST(GradientRecord, OfADestroyedOptimizerIsRemovedWhenAnotherIsSeen) {
  ScalerData data(at::kCPU, {});
  Net stays;
  for (int i = 0; i < 3; ++i) data.record_of(Net().sgd);
  data.record_of(stays.sgd);
  EXPECT_EQ(data.records.size(), 1u) << "their parameters are gone";

  const std::vector<at::Tensor> a = {with_grad({1.F})}, b = {with_grad({1.F})};
  std::optional<torch::optim::SGD> sgd(std::in_place, a, 0.5);
  data.record_of(*sgd);
  sgd.emplace(b, 0.5);
  data.record_of(*sgd);
  EXPECT_EQ(data.records.size(), 2u) << "the first one's parameters live, and the second has its address";
}

TEST(GradientRecord, KeepsItsStageWhenAGroupIsAdded) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  for (int i = 0; i < 2; ++i) {
    const std::vector<at::Tensor> added = {torch::ones({2}, at::requires_grad()),
                                           torch::ones({2}, at::requires_grad())};
    net.sgd.add_param_group(torch::optim::OptimizerParamGroup(added));
    s.watch(net.sgd);
    EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kUnscaled) << i;
  }
}

TEST(GradientRecord, OfAnOptimizerThatHasNotSteppedHasScaledGradientsAndNoUsedOnes) {
  TrackedScaler s = scaler();
  Net net;
  s.watch(net.sgd);
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kScaled);
}

TEST(GradientRecord, KnowsItsOptimizerByTheNumberOfGroups) {
  const at::Tensor a = torch::ones({1}).set_requires_grad(true), b = torch::ones({1}).set_requires_grad(true);
  torch::optim::SGD sgd({a}, 0.5);
  sgd.add_param_group(torch::optim::OptimizerParamGroup({b}));
  const GradientRecord record(sgd);
  sgd.param_groups().pop_back();
  sgd.param_groups()[0].params().push_back(b);
  EXPECT_FALSE(record.belongs_to(sgd));
}

TEST(GradientRecord, WatchingAgainDuringABackwardPassDoesNotHideWhatItWrites) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  s.begin_backward();
  s.scale(net.w.sum()).backward();
  s.watch(net.sgd);
  s.end_backward();
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kMixed);
}

TEST(GradientRecord, AGroupThatIsAddedDuringABackwardPassIsWatchedToo) {
  TrackedScaler s = scaler();
  Net net;
  tracked_backward(s, net.w.sum());
  s.unscale_(net.sgd);
  s.begin_backward();
  const at::Tensor added = torch::ones({2}, at::requires_grad());
  net.sgd.add_param_group(torch::optim::OptimizerParamGroup(std::vector{added}));
  s.watch(net.sgd);
  s.scale(added.sum()).backward();
  s.end_backward();
  EXPECT_EQ(s.gradient_stage(net.sgd), GradientStage::kMixed);
}

}  // namespace
}  // namespace mantissa::gradient_record_lifetime_test
