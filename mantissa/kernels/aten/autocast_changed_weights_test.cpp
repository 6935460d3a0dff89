#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/autocast_test_support_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::autocast_changed_weights_test {
namespace {

using test::Region;
using test::same_bits;

/// Weights and activations that change between a product and its backward pass.
class MixedProductsOfChangedWeights : public test::MixedProductsTest {};

TEST_P(MixedProductsOfChangedWeights, AWeightThatChangesInARegionIsReadAsItIs) {
  if (!is_ours(8, 128, 128)) GTEST_SKIP() << "libtorch multiplies this here";
  const at::Tensor x = at::randn({8, 128}).to(GetParam()), w = at::randn({128, 128}).requires_grad_();
  const Region region(GetParam());
  const at::Tensor first = at::linear(x, w).detach();
  for (int uses = 0; uses < 3; ++uses) {
    {
      const at::NoGradGuard guard;
      w.mul_(2);
    }
    EXPECT_TRUE(same_bits(at::linear(x, w).detach(), first * std::pow(2, uses + 1))) << uses;
  }
}

/// Includes changes that autograd does not see: torch::optim::SGD steps through .data().
TEST_P(MixedProductsOfChangedWeights, AWeightThatChangedIsRefusedInBackward) {
  if (!is_ours(16, 16, 16)) GTEST_SKIP() << "libtorch multiplies this here";
  const at::Tensor x = at::randn({16, 16}).requires_grad_();
  const auto step = [](const at::Tensor& w) {
    torch::optim::SGD sgd({w}, 0.5);
    w.mutable_grad() = at::ones_like(w);
    sgd.step();
    w.mutable_grad() = at::Tensor();
  };
  struct Change {
    const char* what;
    std::function<void(at::Tensor&)> change;
    bool reaches_views = true;
  };
  const std::vector<Change> changes = {
      {"an optimizer's step", step},
      {"a change that autograd sees",
       [](auto& w) {
         const at::NoGradGuard guard;
         w.mul_(2);
       }},
      {"one element", [](auto& w) { w.data()[3][5] += 1; }},
      {"a pointer", [](auto& w) { w.template data_ptr<float>()[77] = 2; }},
      {"other data",
       [](auto& w) {
         w.set_data(at::randn({16, 16}));
       },
       false},
      {"data of another shape",
       [](auto& w) {
         w.set_data(at::randn({3, 16}));
       },
       false},
      {"data of another type", [](auto& w) { w.set_data(w.to(at::kDouble)); }, false}};
  for (const auto& [what, change, reaches_views] : changes)
    for (const bool is_view : {false, true}) {
      SCOPED_TRACE(std::string(what) + (is_view ? ", through a view" : ""));
      at::Tensor w = at::randn({16, 16}).requires_grad_(), y;
      {
        const Region region(GetParam());
        y = is_view ? at::matmul(x, w.t()) : at::linear(x, w);
      }
      y.sum().backward({}, /*keep_graph=*/true);
      change(w);
      const std::string error = error_of([&] { y.sum().backward(); });
      if (is_view && !reaches_views) {
        EXPECT_EQ(error, "no error");
      } else {
        EXPECT_NE(error.find("was changed after the forward pass"), std::string::npos) << error;
      }
    }
}

/// libtorch's autocast does this as well; it then keeps a copy of every weight.
TEST_P(MixedProductsOfChangedWeights, SeparateCastsKeepWhatAWeightWas) {
  const at::Tensor x = at::randn({16, 16}), w = at::randn({16, 16});
  const auto gradient = [&](bool changes) {
    const at::Tensor input = x.detach().requires_grad_(), weight = w.clone().requires_grad_();
    at::Tensor y;
    {
      const SeparateCasts casts;
      const Region region(GetParam());
      y = at::linear(input, weight);
    }
    if (changes) weight.data().zero_();
    y.sum().backward();
    return input.grad();
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

/// The weight's gradient does not need the weight.
TEST_P(MixedProductsOfChangedWeights, AWeightMayChangeWhereTheActivationsNeedNoGradient) {
  const at::Tensor x = at::randn({16, 16}), w = at::randn({16, 16}).requires_grad_();
  const auto gradient = [&](bool changes) {
    at::Tensor y;
    {
      const Region region(GetParam());
      y = at::linear(x, w);
    }
    if (changes) {
      const at::NoGradGuard guard;
      w.mul_(2);
    }
    return torch::autograd::grad({y.sum()}, {w})[0];
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

TEST_P(MixedProductsOfChangedWeights, ActivationsMayChangeWhereTheWeightNeedsNoGradient) {
  const at::Tensor x = at::randn({16, 16}).to(GetParam()).requires_grad_(), w = at::randn({16, 16});
  const at::Tensor middle = x * 1;
  at::Tensor y;
  {
    const Region region(GetParam());
    y = at::linear(middle, w);
  }
  middle.mul_(2);
  y.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::ones({16, 16}, GetParam()).mm(w.to(GetParam()))));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MixedProductsOfChangedWeights, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace mantissa::autocast_changed_weights_test
