#include "mantissa/fp8/fp8_autocast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/training_test_support_internal.h"

namespace mantissa::fp8_training_test {
namespace {

TEST(Fp8Autocast, F8_19_ADisabledRegionComputesInHighPrecision) {
  torch::nn::Linear layer(16, 8);
  const at::Tensor x = wide({4, 16}), plain = layer(x).detach();
  const auto state = mark(layer);
  const StateDict before = saved(*state);
  {
    const Fp8Autocast outer;
    const Fp8Autocast inner({.enabled = false});
    EXPECT_TRUE(at::equal(layer(x), plain));
    layer(x).sum().backward();
  }
  EXPECT_EQ(difference(saved(*state), before), "") << "the state is untouched";
  EXPECT_TRUE(at::allclose(layer->weight.grad(), x.sum(0).expand({8, 16})));
}

TEST(Fp8Autocast, F8_19_TheSameHoldsUnderAutocast) {
  torch::nn::Linear layer(64, 64);
  const at::Tensor x = torch::randn({32, 64}), target = torch::randn({32, 64});
  const auto under_autocast = [&] {
    layer->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor y = layer(x);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    (y.to(at::kFloat) * target).sum().backward();
    return std::pair(y.detach(), layer->weight.grad().clone());
  };
  const auto expected = under_autocast();
  mark(layer);
  const auto got = under_autocast();
  EXPECT_EQ(got.first.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(got.first, expected.first));
  EXPECT_TRUE(at::equal(got.second, expected.second)) << "and so is its gradient";
}

TEST(Fp8Autocast, F8_18_NestedRegionsChangeNoScale) {
  torch::nn::Linear layer(16, 8);
  const auto state = mark(layer);
  const at::Tensor x = wide({4, 16});
  {
    const Fp8Autocast outer;
    {
      const Fp8Autocast inner;
      layer(x);
    }
    layer(x);
  }
  EXPECT_TRUE(at::equal(state->forward.scale, at::ones({3})));
  EXPECT_EQ(state->forward.amax_history[0][0].item<float>(), x.abs().max().item<float>());
  state->update_scales();
  EXPECT_EQ(state->forward.scale[0].item<float>(), 448 / x.abs().max().item<float>());
  const StateDict before = saved(*state);
  {
    const torch::NoGradGuard no_grad;
    const Fp8Autocast region;
    layer(2 * x);
  }
  EXPECT_EQ(difference(saved(*state), before), "") << "evaluation leaves no trace";
}

TEST(Fp8Autocast, F8_20_AnExceptionRestoresTheOuterRegion) {
  const auto is_enabled = [] { return current_fp8_autocast().enabled; };
  EXPECT_FALSE(is_enabled());
  {
    const Fp8Autocast outer;
    try {
      const Fp8Autocast inner({.enabled = false, .calibrating = true});
      EXPECT_TRUE(current_fp8_autocast().calibrating);
      throw std::runtime_error("body");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(is_enabled() && !current_fp8_autocast().calibrating);
    std::thread([&] { EXPECT_FALSE(is_enabled()) << "a region belongs to its thread"; }).join();
  }
  EXPECT_FALSE(is_enabled());
}

TEST(Fp8Autocast, F8_21_CalibrationRecordsAmaxesAndComputesInHighPrecision) {
  torch::nn::Linear layer(16, 8);
  const at::Tensor x = wide({4, 16}), plain = layer(x).detach();
  const auto state = mark(layer);
  {
    const Fp8Autocast calibrating({.enabled = false, .calibrating = true});
    EXPECT_TRUE(at::equal(layer(x), plain));
  }
  const auto amax = [&](int64_t tensor) { return state->forward.amax_history[0][tensor].item<float>(); };
  EXPECT_EQ(amax(0), x.abs().max().item<float>());
  EXPECT_EQ(amax(1), (layer->weight + 0).abs().max().item<float>());
  EXPECT_TRUE(at::equal(state->forward.scale, at::ones({3})));
  state->update_scales();
  EXPECT_EQ(state->has_scales(), Fp8Roles(0b011))
      << "the next step uses them, and the first gradient has one of its own";
  torch::nn::Linear stateless(16, 8);
  const auto none = mark(stateless, MXFP8BlockScaling());
  const StateDict before = saved(*none);
  const Fp8Autocast calibrating({.enabled = false, .calibrating = true});
  stateless(x);
  EXPECT_EQ(difference(saved(*none), before), "") << "other recipes ignore it";
}

TEST(Fp8Autocast, ACalibratingProductThatFailsRecordsNothing) {
  torch::nn::Linear layer(16, 8);
  const auto state = mark(layer);
  const StateDict before = saved(*state);
  const Fp8Autocast calibrating({.enabled = false, .calibrating = true});
  const auto expect_refused = [&](const auto& product, const char* what) {
    EXPECT_NE(error_of(product), "no error") << what;
    EXPECT_EQ(difference(saved(*state), before), "") << what;
  };
  expect_refused([&] { layer(torch::ones({4, 12})); }, "another size");
  expect_refused([&] { layer(torch::ones({4, 8})); }, "the size of the result");
  expect_refused(
      [&] {
        layer(torch::ones({16, 4}));
      },
      "another size with as many rows as the weight has columns");
  expect_refused([&] { at::mm(torch::ones({4, 16}), layer->weight); }, "a weight that is not transposed");
  expect_refused([&] { at::mm(layer->weight, torch::ones({4, 8})); }, "the size of the result, on the right");
  expect_refused([&] { at::mv(layer->weight, torch::ones(8)); }, "a vector");
  expect_refused([&] { at::addmm(torch::ones(16), torch::ones({4, 16}), layer->weight); }, "a sum");
  expect_refused([&] { layer(torch::ones({4, 16}, at::kDouble)); }, "another dtype");
  expect_refused([&] { at::mm(layer->weight, torch::ones({8, 4})); }, "a weight on the left");
  expect_refused(
      [&] {
        state->record_amaxes(torch::ones({4, 16}), torch::ones({8, 16}, at::kDouble));
      },
      "a weight of another dtype");
  at::mm(layer->weight, torch::ones({16, 4}));
  EXPECT_EQ(state->forward.amax_history[0][0].item<float>(), 1);
}

}  // namespace
}  // namespace mantissa::fp8_training_test
