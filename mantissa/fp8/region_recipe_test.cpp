// Tests of regions with a recipe of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::region_recipe_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

struct Layer {
  explicit Layer(const Fp8Recipe& recipe) : state(state_of(recipe, 11)) {
    torch::manual_seed(6);
    linear = torch::nn::Linear(40, 24);
    x = torch::randn({6, 40}).requires_grad_();
    mark_weight(linear->weight, std::make_shared<Fp8TrainingRule>(state));
  }
  /// The backward pass runs wherever the caller is.
  Pass backward(const at::Tensor& y) {
    x.mutable_grad() = at::Tensor(), linear->weight.mutable_grad() = at::Tensor();
    y.square().sum().backward();
    return {y.detach(), x.grad(), linear->weight.grad(), {}};
  }
  std::shared_ptr<Fp8LinearState> state;
  torch::nn::Linear linear{nullptr};
  at::Tensor x;
};

void expect_same(const Pass& got, const Pass& want) {
  EXPECT_TRUE(same_bits(got.y, want.y));
  EXPECT_TRUE(same_bits(got.dx, want.dx) && same_bits(got.dw, want.dw));
}

TEST(Fp8RegionRecipe, F8_18_F8_19_AnInnerRecipeIsUsedOnlyThere) {
  for (const auto& [name, recipe] : recipes()) {
    if (std::holds_alternative<DelayedScaling>(recipe)) continue;
    SCOPED_TRACE(name);
    Layer layer(DelayedScaling{}), delayed(DelayedScaling{}), other(recipe);
    const Fp8Autocast outer;
    at::Tensor y;
    {
      const Fp8Autocast inner({.recipe = recipe});
      y = layer.linear(layer.x);
    }
    // The backward pass computes as the forward pass did, although it runs in the outer region.
    expect_same(layer.backward(y), other.backward(other.linear(other.x)));
    EXPECT_TRUE(layer.state->forward.amax_history.eq(0).all().item<bool>()) << "no history was written";
    EXPECT_TRUE(layer.state->backward.amax_history.eq(0).all().item<bool>());
    layer.state->update_scales();
    EXPECT_TRUE(layer.state->forward.scale.eq(1).all().item<bool>()) << "no scale moved";
    expect_same(layer.backward(layer.linear(layer.x)), delayed.backward(delayed.linear(delayed.x)));
  }
}

TEST(Fp8RegionRecipe, F8_20_AnExceptionRestoresTheOuterRecipe) {
  const Fp8Autocast outer({.recipe = MXFP8BlockScaling{}});
  try {
    const Fp8Autocast inner({.recipe = NVFP4BlockScaling{}});
    const Fp8Autocast innermost;
    EXPECT_FALSE(current_fp8_autocast().recipe.has_value())
        << "a region without a recipe uses the layers' own";
    throw std::runtime_error("in the region");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(current_fp8_autocast().recipe, Fp8Recipe(MXFP8BlockScaling{}));
  }
}

TEST(Fp8RegionRecipe, NVFP4TakesTheLayersRandomNumbers) {
  Layer layer(Float8CurrentScaling{});
  const Fp8Autocast region({.recipe = NVFP4BlockScaling{}});
  const auto step = [&] { return layer.backward(layer.linear(layer.x)); };
  const Pass first = step();
  const StateDict after_first = snapshot(layer.state->state_dict());
  EXPECT_EQ(layer.state->stream(), 2);
  {
    const at::NoGradGuard evaluation;
    layer.linear(layer.x);
  }
  const Pass second = step();
  EXPECT_TRUE(same_bits(first.y, second.y));
  EXPECT_FALSE(same_bits(first.dx, second.dx)) << "other draws";
  layer.state->load_state_dict(StateReader(after_first));
  expect_same(step(), second);
}

TEST(Fp8RegionRecipe, AHistoryIsOnlyOfTheLayersOwnRecipe) {
  Layer current(Float8CurrentScaling{}), delayed(DelayedScaling{.amax_history_len = 3});
  const Fp8Autocast region({.recipe = DelayedScaling{.amax_history_len = 3}});
  EXPECT_THAT(error_of([&] { current.linear(current.x); }),
              HasSubstr("a DelayedScaling other than the layer's own, which is Float8CurrentScaling: "));
  {
    const Fp8Autocast longer({.recipe = DelayedScaling{.amax_history_len = 4}});
    EXPECT_THAT(error_of([&] { delayed.linear(delayed.x); }),
                HasSubstr("which is DelayedScaling with other settings: "));
  }
  delayed.linear(delayed.x);
  EXPECT_GT(delayed.state->forward.amax_history[0][0].item<float>(), 0) << "the layer's own";
}

TEST(Fp8RegionRecipe, TheLayersSampleCountsTheRegionsQuantization) {
  Layer layer(DelayedScaling{});
  layer.state->sample(LayerSampling::kTensorsAndErrors);
  const Fp8Autocast region({.recipe = Float8CurrentScaling{}});
  layer.backward(layer.linear(layer.x));
  const TensorStatistics input = layer.state->statistics().tensors.at("input");
  EXPECT_EQ(input.scale_max, 448 / layer.x.abs().max().item<float>());
  EXPECT_EQ(layer.state->statistics().products.size(), 3);
}

TEST(Fp8RegionRecipe, EvaluationUsesItToo) {
  Layer layer(DelayedScaling{}), other(MXFP8BlockScaling{});
  const at::NoGradGuard no_grad;
  const Fp8Autocast region({.recipe = MXFP8BlockScaling{}});
  EXPECT_TRUE(same_bits(layer.linear(layer.x), other.linear(other.x)));
}

}  // namespace
}  // namespace mantissa::region_recipe_test
