// Inputs, weights and gradients in every form that libtorch gives a tensor: views, one or many dimensions, results that
// are changed later, and the limits of float32.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/attention_fp8.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::input_forms_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

struct Case {
  at::Tensor x, w, dy;
};

Case make_case() {
  torch::manual_seed(11);
  return {wide({12, 40}), wide({24, 40}), wide({12, 24})};
}

void expect_same(const Pass& got, const Pass& want, const std::string& what) {
  EXPECT_TRUE(same_bits(got.y.reshape({12, 24}), want.y)) << what;
  EXPECT_TRUE(same_bits(got.dx.reshape({12, 40}), want.dx)) << what;
  EXPECT_TRUE(same_bits(got.dw, want.dw)) << what;
}

/// As pass(), with leaves that keep the strides of the arguments.
Pass pass_of_views(const at::Tensor& x, const at::Tensor& w, const at::Tensor& dy, const Fp8Recipe& recipe) {
  const at::Tensor x_leaf = x.detach().requires_grad_(), w_leaf = w.detach().requires_grad_();
  const at::Tensor y = linear_fp8(x_leaf, w_leaf, {}, state_of(recipe, 3));
  y.backward(dy);
  return {y.detach(), x_leaf.grad(), w_leaf.grad(), {}};
}

TEST(InputForms, ViewsAreReadAsTheirValues) {
  const Case c = make_case();
  for (const auto& [name, recipe] : recipes()) {
    const Pass want = pass_of_views(c.x, c.w, c.dy, recipe);
    const auto swapped = [](const at::Tensor& x) { return x.t().contiguous().t(); };
    expect_same(pass_of_views(swapped(c.x), swapped(c.w), swapped(c.dy), recipe), want,
                name + ", transposed");
    const at::Tensor wider = torch::cat({c.x, c.x}, 1);
    expect_same(pass_of_views(wider.slice(1, 40), c.w, c.dy, recipe), want, name + ", a part of its rows");
    expect_same(pass_of_views(c.x.view({2, 2, 3, 40}), c.w, c.dy.view({2, 2, 3, 24}), recipe), want,
                name + ", four dimensions");
  }
}

TEST(InputForms, ARowIsAVectorAndAnExpandedGradientItsValues) {
  const Case c = make_case();
  for (const auto& [name, recipe] : recipes()) {
    const at::Tensor row = c.x[1];
    const Pass want = pass_of_views(row.view({1, 40}), c.w, c.dy.slice(0, 1, 2), recipe),
               vector = pass_of_views(row, c.w, c.dy[1], recipe);
    EXPECT_EQ(vector.y.sizes(), at::IntArrayRef({24})) << name;
    EXPECT_TRUE(same_bits(vector.y, want.y[0]) && same_bits(vector.dx, want.dx[0]) &&
                same_bits(vector.dw, want.dw))
        << name;
    const at::Tensor ones = torch::ones({1, 1}).expand({12, 24});
    expect_same(pass_of_views(c.x, c.w, ones, recipe), pass_of_views(c.x, c.w, ones.contiguous(), recipe),
                name);
    const at::Tensor same_rows = row.view({1, 40}).expand({12, 40});
    EXPECT_TRUE(same_bits(pass_of_views(same_rows, c.w, c.dy, recipe).dw,
                          pass_of_views(same_rows.contiguous(), c.w, c.dy, recipe).dw))
        << name;
  }
}

// Backward reads codes, so libtorch need not refuse the change.
TEST(InputForms, AnInputThatIsChangedAfterwardsHasTheGradientsOfItsOldValues) {
  const Case c = make_case();
  for (const auto& [name, recipe] : recipes()) {
    const Pass want = pass_of_views(c.x, c.w, c.dy, recipe);
    const at::Tensor x_leaf = c.x.detach().requires_grad_(), w_leaf = c.w.detach().requires_grad_();
    at::Tensor x = x_leaf + 0;
    const at::Tensor y = linear_fp8(x, w_leaf, {}, state_of(recipe, 3));
    x.mul_(0);
    y.backward(c.dy);
    EXPECT_TRUE(same_bits(x_leaf.grad(), want.dx) && same_bits(w_leaf.grad(), want.dw)) << name;
  }
}

TEST(InputForms, AWeightThatIsUsedTwiceHasTheSumOfBothGradients) {
  const Case c = make_case();
  for (const Fp8Recipe& recipe :
       {Fp8Recipe(Float8CurrentScaling{}), Fp8Recipe(Float8BlockScaling{}), Fp8Recipe(MXFP8BlockScaling{})}) {
    const at::Tensor other = c.x * 3 + 1, w = c.w.detach().requires_grad_();
    const auto state = state_of(recipe);
    (linear_fp8(c.x, w, {}, state) * c.dy + linear_fp8(other, w, {}, state) * c.dy).sum().backward();
    const at::Tensor sum =
        pass_of_views(c.x, c.w, c.dy, recipe).dw + pass_of_views(other, c.w, c.dy, recipe).dw;
    EXPECT_TRUE(at::allclose(w.grad(), sum, 1e-6, 1e-6)) << recipe_name(recipe);
  }
}

TEST(InputForms, TheLargestAndTheSmallestNumbersHaveResults) {
  for (const auto& [name, recipe] : recipes())
    for (const float magnitude : {3e38F, 1e-38F, 1e-45F}) {
      const std::string what = c10::str(name, " at ", magnitude);
      const at::Tensor x = torch::full({4, 32}, magnitude), w = torch::eye(32);
      const Pass got = pass(x, w, {}, torch::ones({4, 32}), state_of(recipe));
      EXPECT_TRUE(at::isfinite(got.y).all().item<bool>()) << what;
      EXPECT_TRUE(at::isfinite(got.dx).all().item<bool>()) << what;
      EXPECT_TRUE(got.y.ge(0).logical_and(got.y.le(3.4e38)).all().item<bool>()) << what;
    }
  const Pass large = pass(torch::full({4, 32}, 1e30F), torch::eye(32), {}, torch::ones({4, 32}),
                          state_of(Float8CurrentScaling{}));
  EXPECT_TRUE(at::allclose(large.y, torch::full({4, 32}, 1e30F), 1e-6, 0));
}

TEST(InputForms, ABiasMayBeFrozenAloneOrTrainAlone) {
  const Case c = make_case();
  for (const auto& [name, recipe] : recipes()) {
    const at::Tensor b = torch::randn(24), w = c.w.detach().requires_grad_();
    linear_fp8(c.x, w, b, state_of(recipe)).backward(c.dy);
    EXPECT_TRUE(w.grad().defined() && !b.grad().defined()) << name;
    const at::Tensor trained = b.detach().requires_grad_();
    linear_fp8(c.x, c.w, trained, state_of(recipe)).backward(c.dy);
    EXPECT_TRUE(same_bits(trained.grad(), c.dy.sum(0))) << name;
  }
}

TEST(InputForms, AttentionHasNoSecondDerivative) {
  const at::Tensor q = torch::randn({1, 2, 5, 8}).requires_grad_();
  const at::Tensor y =
      attention_fp8({.query = q, .key = q, .value = q}, Fp8AttentionState(Float8CurrentScaling{}));
  EXPECT_THAT(error_of([&] { torch::autograd::grad({y.sum()}, {q}, {}, {}, /*create_graph=*/true); }),
              HasSubstr("attention_fp8: has no second derivative"));
}

}  // namespace
}  // namespace mantissa::input_forms_test
