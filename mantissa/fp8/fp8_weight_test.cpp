#include "mantissa/fp8/fp8_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/fp8_weight_internal.h"
#include "mantissa/fp8/test_support_internal.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::fp8_weight_test {
namespace {

using testing::HasSubstr;

std::vector<Fp8Recipe> recipes() {
  return {DelayedScaling{.amax_history_len = 3}, Float8CurrentScaling(), Float8BlockScaling(),
          MXFP8BlockScaling{.enable_2d_quantization = true}};
}

std::shared_ptr<Fp8LinearState> store(const torch::nn::Linear& layer, const Fp8Recipe& recipe,
                                      const Fp8WeightOptions& options = {}) {
  auto state = std::make_shared<Fp8LinearState>(recipe, /*seed=*/7);
  make_fp8_weight(layer->weight, state, options);
  return state;
}

at::Tensor forward(torch::nn::Linear& layer, const at::Tensor& x) {
  const Fp8Autocast region;
  return layer(x);
}

TEST(Fp8Weight, F8_33_AWeightTakesOneByteAValueWithinHalfAnUlp) {
  torch::manual_seed(1);
  torch::nn::Linear layer(64, 32);
  const at::Tensor before = layer->weight.detach().clone();
  store(layer, Float8CurrentScaling());
  ASSERT_TRUE(is_fp8_weight(layer->weight) && layer->weight.requires_grad());
  EXPECT_EQ(layer->weight.storage().nbytes(), 64 * 32 + 4);
  const auto parts = packed_data(layer->weight)->parts();
  EXPECT_EQ(parts.at("").scalar_type(), at::kFloat8_e4m3fn);
  const at::Tensor error = (mantissa::dequantize(layer->weight.detach()) - before).abs();
  const at::Tensor bound = (before.abs() * 0x1p-4).maximum(parts.at("scale_inv") * 0x1p-10) * (1 + 1e-6);
  EXPECT_TRUE(error.le(bound).all().item<bool>());
}

TEST(Fp8Weight, F8_34_InitialValuesAreKeptOnRequestUntilTheyAreCleared) {
  torch::nn::Linear layer(16, 16), other(16, 16);
  const at::Tensor before = layer->weight.detach().clone();
  store(layer, DelayedScaling(), {.preserve_high_precision_init_val = true});
  store(other, DelayedScaling());
  EXPECT_TRUE(high_precision_init_val(layer->weight).equal(before));
  EXPECT_FALSE(high_precision_init_val(other->weight).defined());
  store_fp8_weight(layer->weight, torch::zeros({16, 16}));
  EXPECT_TRUE(high_precision_init_val(layer->weight).equal(before));  // a step changes the codes alone
  clear_high_precision_init_val(layer->weight);
  EXPECT_FALSE(high_precision_init_val(layer->weight).defined());
  EXPECT_THAT(error_of([] { high_precision_init_val(torch::ones({2, 2})); }), HasSubstr("make_fp8_weight()"));
}

/// Trains a layer on master weights; `stores` keeps only its codes between the steps.
struct Trained {
  Trained(const Fp8Recipe& recipe, bool stores, int64_t out = 24) : layer(40, out) {
    const at::Tensor initial =
        torch::linspace(-0.5, 0.7, 40 * out).view({out, 40}) * torch::linspace(0.1, 3, 40);
    layer->weight.data().copy_(initial);
    master = initial.clone();
    state = std::make_shared<Fp8LinearState>(recipe, 7);
    if (stores) {
      make_fp8_weight(layer->weight, state);
    } else {
      mark_weight(layer->weight, std::make_shared<Fp8TrainingRule>(state));
    }
  }

  at::Tensor step(const at::Tensor& x) {
    at::Tensor y;
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      y = forward(layer, x + micro_batch);
      y.square().mean().backward();
    }
    const at::NoGradGuard no_grad;
    master.sub_(layer->weight.grad() * 0.05);
    layer->weight.mutable_grad() = at::Tensor();
    state->update_scales();
    if (is_fp8_weight(layer->weight)) {
      store_fp8_weight(layer->weight, master);
    } else {
      layer->weight.copy_(master);
    }
    return y.detach();
  }

  torch::nn::Linear layer;
  at::Tensor master;
  std::shared_ptr<Fp8LinearState> state;
};

TEST(Fp8Weight, MasterWeightsTrainBitForBitAsHighPrecision) {
  for (const Fp8Recipe& recipe : recipes()) {
    SCOPED_TRACE(recipe_name(recipe));
    torch::manual_seed(2);
    Trained stored(recipe, true), plain(recipe, false);
    plain.layer->bias.data().copy_(stored.layer->bias);
    for (int i = 0; i < 6; ++i) {
      const at::Tensor x = torch::randn({7, 40}) * (i + 1);
      ASSERT_TRUE(stored.step(x).equal(plain.step(x))) << i;
      ASSERT_TRUE(stored.master.equal(plain.master)) << i;
    }
    if (std::holds_alternative<DelayedScaling>(recipe)) {
      EXPECT_TRUE(stored.state->forward.amax_history.equal(plain.state->forward.amax_history));
    }
    const at::NoGradGuard no_grad;
    const at::Tensor x = torch::randn({3, 40});
    EXPECT_TRUE(forward(stored.layer, x).equal(forward(plain.layer, x)));
  }
}

TEST(Fp8Weight, OutsideOfARegionTheDequantizedValuesMultiply) {
  torch::nn::Linear layer(16, 8);
  store(layer, Float8CurrentScaling());
  const at::Tensor x = torch::randn({4, 16});
  const at::Tensor y = layer(x);
  EXPECT_TRUE(y.equal(torch::linear(x, mantissa::dequantize(layer->weight.detach()), layer->bias)));
  y.sum().backward();
  EXPECT_TRUE(layer->weight.grad().allclose(x.sum(0).expand({8, 16})));
}

TEST(Fp8Weight, StochasticRoundingKeepsTheMeanAndWhatIsRepresentable) {
  const at::Tensor exact = torch::tensor({0.0, 1.0, -1.125, 448.0, 0x1p-9, -0x1p-7, 14.0, 600.0});
  EXPECT_TRUE(fp8::round_stochastically(exact, 1, 2).equal(exact.clamp(-448, 448)));
  const int64_t draws = 1 << 14;
  for (const double value : {1.03, -1.03, 17.2, 0.0007, 300.5}) {
    const at::Tensor rounded = fp8::round_stochastically(torch::full({draws}, value), 3, 4).to(at::kDouble);
    const double mean = rounded.mean().item<double>(), deviation = rounded.std().item<double>();
    EXPECT_NEAR(mean, value, 5 * deviation / 128) << value;  // 128 is the root of the number of draws
    EXPECT_GT(deviation, 0) << value;
  }
  EXPECT_TRUE(fp8::round_stochastically(torch::full({3}, fp8::kNaN), 1, 1).isnan().all().item<bool>());
  EXPECT_EQ(fp8::round_stochastically(torch::full({1}, -fp8::kInf), 1, 1).item<float>(), -448);
}

TEST(Fp8Weight, WithoutMasterWeightsAStepRoundsAtRandomAndRepeats) {
  const auto run = [](const Fp8Recipe& recipe) {
    torch::manual_seed(5);
    torch::nn::Linear layer(32, 16);
    const auto state = store(layer, recipe);
    const at::Tensor x = torch::randn({64, 32}), target = torch::randn({64, 16});
    double first = 0, last = 0;
    for (int i = 0; i < 60; ++i) {
      const at::Tensor loss = torch::mse_loss(forward(layer, x), target);
      loss.backward();
      const at::Tensor values = mantissa::dequantize(layer->weight.detach()) - 0.3 * layer->weight.grad();
      layer->weight.mutable_grad() = at::Tensor();
      state->update_scales();
      store_fp8_weight(layer->weight, values, Fp8Rounding::kStochastic);
      (i == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(last, 0.95 * first);
    EXPECT_EQ(state->stream(), 60);
    return mantissa::dequantize(layer->weight.detach());
  };
  EXPECT_TRUE(run(Float8CurrentScaling()).equal(run(Float8CurrentScaling())));
  run(DelayedScaling{.amax_history_len = 4});
}

TEST(Fp8Weight, AnUnchangedWeightKeepsItsValuesWhenTheScaleChanges) {
  torch::nn::Linear layer(32, 16);
  store(layer, Float8CurrentScaling());
  const auto round = [&](const at::Tensor& values) {
    store_fp8_weight(layer->weight, values, Fp8Rounding::kStochastic);
    return mantissa::dequantize(layer->weight.detach());
  };
  const at::Tensor once = round(mantissa::dequantize(layer->weight.detach()));
  EXPECT_TRUE(round(once).equal(once));
  at::Tensor larger = once.clone();
  larger[0][0] = once.abs().max() * 4;  // all scales are powers of two
  const at::Tensor normal = once.abs() > once.abs().max() * 0x1p-10;
  EXPECT_TRUE(
      round(larger).masked_select(normal).slice(0, 1).equal(larger.masked_select(normal).slice(0, 1)));
}

TEST(Fp8Weight, APartsLoaderRestoresEveryBit) {
  for (const Fp8Recipe& recipe : recipes()) {
    torch::nn::Linear saved(40, 24), loaded(40, 24);
    store(saved, recipe), store(loaded, recipe);
    std::map<std::string, at::Tensor> file = named_parts({{"weight", saved->weight}});
    PartsLoader(*loaded, file).load();
    EXPECT_TRUE(file.empty());
    EXPECT_TRUE(is_fp8_weight(loaded->weight) && is_marked(loaded->weight) && loaded->weight.requires_grad());
    EXPECT_TRUE(
        mantissa::dequantize(loaded->weight.detach()).equal(mantissa::dequantize(saved->weight.detach())));
    const at::Tensor x = torch::randn({3, 40});
    loaded->bias.data().copy_(saved->bias);
    EXPECT_TRUE(forward(loaded, x).equal(forward(saved, x)));
  }
}

TEST(Fp8Weight, PlainValuesAreQuantizedAndPreserved) {
  torch::nn::Linear layer(16, 8);
  store(layer, Float8CurrentScaling(), {.preserve_high_precision_init_val = true});
  std::map<std::string, at::Tensor> file = {{"weight", torch::randn({8, 16})}};
  const at::Tensor values = file.at("weight");
  PartsLoader(*layer, file).load();
  EXPECT_TRUE(high_precision_init_val(layer->weight).equal(values));
  EXPECT_TRUE(mantissa::dequantize(layer->weight.detach())
                  .equal(dequantize_fp8(quantize_fp8_current(values, at::kFloat8_e4m3fn))));
}

TEST(Fp8Weight, CopiesTrainApart) {
  torch::nn::Sequential model(torch::nn::Linear(16, 8));
  const auto layer = torch::nn::Linear(std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->ptr(0)));
  store(layer, Float8CurrentScaling());
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  const at::Tensor weight = copy->named_parameters()["0.weight"],
                   before = mantissa::dequantize(weight.detach());
  EXPECT_TRUE(is_fp8_weight(weight) && weight.requires_grad());
  EXPECT_NE(fp8_state_of(weight), fp8_state_of(layer->weight));
  store_fp8_weight(layer->weight, torch::zeros({8, 16}));
  EXPECT_TRUE(mantissa::dequantize(weight.detach()).equal(before));
}

TEST(Fp8Weight, OptimizersCannotChangeItInPlace) {
  torch::nn::Linear layer(16, 8);
  store(layer, Float8CurrentScaling());
  forward(layer, torch::randn({2, 16})).sum().backward();
  torch::optim::SGD optimizer({layer->weight}, 0.1);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("cannot be changed in place"));
}

TEST(Fp8Weight, WhatCannotBeStoredIsRefused) {
  torch::nn::Linear layer(16, 8);
  const auto refusal = [&](const Fp8Recipe& recipe) { return error_of([&] { store(layer, recipe); }); };
  EXPECT_THAT(refusal(NVFP4BlockScaling()), HasSubstr("choose another recipe"));
  EXPECT_THAT(refusal(MXFP8BlockScaling()), HasSubstr("set enable_2d_quantization"));
  EXPECT_FALSE(is_packed(layer->weight));
  store(layer, Float8BlockScaling());
  EXPECT_THAT(error_of([&] {
                store_fp8_weight(layer->weight, torch::ones({8, 16}), Fp8Rounding::kStochastic);
              }),
              HasSubstr("use master weights"));
  EXPECT_THAT(error_of([&] { store_fp8_weight(layer->weight, torch::ones({8, 15})); }), HasSubstr("[8, 16]"));
  EXPECT_THAT(error_of([&] {
                store_fp8_weight(torch::ones({8, 16}), torch::ones({8, 16}));
              }),
              HasSubstr("make_fp8_weight()"));
  EXPECT_THAT(refusal(Float8CurrentScaling()), HasSubstr("is packed"));
}

}  // namespace
}  // namespace mantissa::fp8_weight_test
