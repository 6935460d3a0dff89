#include <gtest/gtest.h>
#include <optional>

#include <torch/torch.h>

#include "mantissa/amp/gradient_watch_internal.h"
#include "mantissa/amp/test_support_internal.h"

// Which gradients a backward pass has written, and which have other writers.
namespace mantissa::gradient_watch_test {
namespace {

constexpr auto kChecked = GradientOrigin::kChecked;
constexpr auto kNew = GradientOrigin::kNew;
constexpr auto kMixed = GradientOrigin::kMixed;

at::Tensor weight() { return torch::ones({2}).set_requires_grad(true); }

GradientOrigin origin(const GradientWatch& watch, const std::vector<at::Tensor>& parameters, size_t i,
                      GradientOrigin before = kChecked) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  std::vector<GradientOrigin> from(parameters.size(), kChecked);
  from[i] = before;
  return watch.origins(gradients, from)[i];
}

TEST(GradientWatch, TellsNewGradientsFromThoseThatWereAddedTo) {
  const std::vector<at::Tensor> p = {weight(), weight(), weight(), weight()};
  (p[0] + p[1]).sum().backward();
  const GradientWatch watch(p);
  (p[0] + p[2]).sum().backward();
  EXPECT_EQ(origin(watch, p, 0), kMixed);
  EXPECT_EQ(origin(watch, p, 0, kNew), kNew) << "both parts are scaled";
  EXPECT_EQ(origin(watch, p, 1), kChecked);
  EXPECT_EQ(origin(watch, p, 1, kMixed), kMixed) << "a mixture stays one";
  EXPECT_EQ(origin(watch, p, 2), kNew);
  EXPECT_EQ(origin(watch, p, 3, kMixed), kChecked) << "it was cleared and not computed";
}

TEST(GradientWatch, SeesASumThatReplacesTheGradient) {
  const std::vector<at::Tensor> p = {weight()};
  p[0].sum().backward();
  const GradientWatch watch(p);
  p[0].mutable_grad() = p[0].grad() + 1;  // as a backward pass with create_graph does
  EXPECT_EQ(origin(watch, p, 0), kMixed);
}

TEST(GradientWatch, KnowsViewsOfOneBucketApart) {
  const std::vector<at::Tensor> p = {weight(), weight()};
  const at::Tensor bucket = torch::ones({4});
  p[0].mutable_grad() = bucket.narrow(0, 0, 2);
  p[1].mutable_grad() = bucket.narrow(0, 2, 2);
  {
    const GradientWatch watch(p);
    p[1].sum().backward();
    ASSERT_TRUE(torch::equal(bucket, torch::tensor({1.F, 1.F, 2.F, 2.F})));
    EXPECT_EQ(origin(watch, p, 0), kChecked) << "its version has changed";
    EXPECT_EQ(origin(watch, p, 1), kMixed);
  }
  p[0].sum().backward();  // the hooks are gone
}

TEST(GradientWatch, SeesAGradientThatAHookHasMovedToAnotherTensor) {
  const at::Tensor half = torch::ones({2}, at::kHalf).set_requires_grad(true);
  const std::vector<at::Tensor> master = {weight()};
  const GradientHook move(half, GradientHookOrder::kMove, [&](const at::Tensor& parameter) {
    const at::NoGradGuard no_grad;
    at::Tensor& sum = master[0].mutable_grad();
    sum = sum.defined() ? sum.add_(parameter.grad()) : parameter.grad().to(at::kFloat);
    parameter.mutable_grad() = at::Tensor();
  });
  for (const GradientOrigin expected : {kNew, kMixed}) {
    const GradientWatch watch(master);
    half.sum().backward();
    EXPECT_EQ(origin(watch, master, 0), expected);
  }
}

TEST(GradientWatch, AParameterMayBeGone) {
  const std::vector<at::Tensor> p = {at::Tensor()};
  EXPECT_EQ(GradientWatch(p).origins(p, {kChecked})[0], kChecked);
}

TEST(GradientWatch, SeesGradientsThatWereClearedInPlace) {
  const std::vector<at::Tensor> p = {weight(), weight(), weight()};
  (p[0] + p[1] + p[2]).sum().backward();
  p[0].grad().zero_();
  p[1].grad().zero_();
  const GradientWatch watch(p);
  EXPECT_EQ(origin(watch, p, 0), kChecked) << "no pass has written any";
  p[0].sum().backward();
  EXPECT_EQ(origin(watch, p, 0), kNew);
  EXPECT_EQ(origin(watch, p, 0, kMixed), kNew);
  EXPECT_EQ(origin(watch, p, 1), GradientOrigin::kZero);
  EXPECT_EQ(origin(watch, p, 2), kChecked);
}

TEST(GradientWatch, LooksAtEmptySparseAndFp16Gradients) {
  const std::vector<at::Tensor> p = {torch::ones({0}).set_requires_grad(true), weight(),
                                     torch::ones({2}, at::kHalf).set_requires_grad(true)};
  p[0].mutable_grad() = torch::ones({0});
  p[1].mutable_grad() = sparse({1.F});
  p[2].mutable_grad() = torch::full({2}, 6e-8, at::kHalf);
  const GradientWatch watch(p);
  (p[0].sum() + p[1].sum() + p[2].sum()).backward();
  EXPECT_EQ(origin(watch, p, 0), kNew) << "it has no elements";
  EXPECT_EQ(origin(watch, p, 1), kMixed);
  EXPECT_EQ(origin(watch, p, 2), kMixed) << "the smallest fp16 number is not 0";
}

TEST(GradientWatch, AGradientWhoseSquareIsZeroWasNotCleared) {
  const std::vector<at::Tensor> p = {weight()};
  p[0].mutable_grad() = torch::full({2}, 1e-30F);
  const GradientWatch watch(p);
  p[0].sum().backward();
  EXPECT_EQ(origin(watch, p, 0), kMixed);
}

TEST(GradientWatch, AZeroThatTheLoopHasFilledCountsAsChecked) {
  const std::vector<at::Tensor> p = {weight()};
  p[0].sum().backward();  // stands for what the loop wrote over the zeros
  const GradientWatch watch(p);
  EXPECT_EQ(origin(watch, p, 0, GradientOrigin::kZero), kChecked);
  p[0].sum().backward();
  EXPECT_EQ(origin(watch, p, 0, GradientOrigin::kZero), kMixed);
}

}  // namespace
}  // namespace mantissa::gradient_watch_test
