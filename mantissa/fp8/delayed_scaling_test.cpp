#include "mantissa/fp8/delayed_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::delayed_scaling_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;

float number(const nlohmann::json& value) {
  if (!value.is_string()) return value.get<float>();
  return value.get<std::string>() == "inf" ? kInf : kNaN;
}

at::Tensor numbers(const nlohmann::json& values) {
  std::vector<float> all;
  for (const auto& value : values) all.push_back(number(value));
  return torch::tensor(all);
}

/// The functions that stand for the two algorithms of Transformer Engine's fallback.
at::Tensor largest(const at::Tensor& history) { return std::get<0>(history.max(0)); }
at::Tensor most_recent(const at::Tensor& history) { return history[0].clone(); }

DelayedScaling recipe_of(const nlohmann::json& sequence) {
  const bool is_max = sequence["algo"] == "max";
  DelayedScaling recipe = {.amax_history_len = sequence["history_len"].get<int64_t>(),
                           .amax_compute_algo = is_max ? AmaxComputeAlgo::kMax : AmaxComputeAlgo::kMostRecent,
                           .margin = sequence["margin"].get<int64_t>()};
  if (sequence["variant"] == "unfused") recipe.amax_compute = is_max ? largest : most_recent;
  return recipe;
}

void step(DelayedScalingState& state, const DelayedScaling& recipe, float amax,
          at::ScalarType dtype = kE4M3) {
  state.amax_history[0].fill_(amax);
  update_scales({&state}, dtype, recipe);
}

float scale_of(const DelayedScalingState& state) { return state.scale[0].item<float>(); }

TEST(DelayedScaling, F8_11_F8_12_F8_13_F8_15_RecordedSequences) {
  int compared = 0;
  const nlohmann::json recorded_sequences = recorded_json("fp8_delayed_scaling.json");
  for (const auto& sequence : recorded_sequences["sequences"]) {
    const DelayedScaling recipe = recipe_of(sequence);
    const at::ScalarType dtype = sequence["fp8_max"].get<float>() == 448 ? kE4M3 : at::kFloat8_e5m2;
    DelayedScalingState state = delayed_scaling_state(recipe, 1);
    int index = 0;
    for (const auto& recorded : sequence["steps"]) {
      step(state, recipe, number(recorded[0]), dtype);
      const std::string where = sequence["algo"].get<std::string>() + ", " +
                                sequence["variant"].get<std::string>() + ", step " + std::to_string(index++);
      EXPECT_EQ(scale_of(state), number(recorded[1])) << where;
      if (recorded.size() < 3) continue;
      EXPECT_TRUE(same_bits(state.amax_history.view({-1}), numbers(recorded[2]))) << where;
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(DelayedScaling, F8_12_F8_13_OnlyAFunctionMovesAHistoryOnWithoutAnAmax) {
  for (const bool is_function : {false, true}) {
    DelayedScaling recipe = {.amax_history_len = 3};
    if (is_function) recipe.amax_compute = largest;
    DelayedScalingState state = delayed_scaling_state(recipe, 1);
    step(state, recipe, 2);
    step(state, recipe, 0);
    EXPECT_EQ(state.amax_history[1].item<float>(), is_function ? 2 : 0);
    EXPECT_EQ(state.amax_history[2].item<float>(), is_function ? 0 : 2);
    EXPECT_EQ(scale_of(state), 224);
  }
}

TEST(DelayedScaling, F8_14_MostRecentUsesOneStepAndMaxAll) {
  const DelayedScaling max = {.amax_history_len = 2},
                       recent = {.amax_history_len = 2, .amax_compute_algo = AmaxComputeAlgo::kMostRecent},
                       one = {.amax_history_len = 1};
  DelayedScalingState by_max = delayed_scaling_state(max, 1), by_recent = delayed_scaling_state(recent, 1),
                      by_one = delayed_scaling_state(one, 1);
  const float want_max[] = {56, 56, 112, 224}, amaxes[] = {8, 4, 2, 1};
  for (int i = 0; i < 4; ++i) {
    step(by_max, max, amaxes[i]), step(by_recent, recent, amaxes[i]), step(by_one, one, amaxes[i]);
    EXPECT_EQ(scale_of(by_max), want_max[i]) << i;
    EXPECT_EQ(scale_of(by_recent), 448 / amaxes[i]) << i;
    EXPECT_EQ(scale_of(by_one), 448 / amaxes[i]) << i;
  }
}

TEST(DelayedScaling, F8_15_AMarginDividesByAPowerOfTwo) {
  for (const int64_t margin : {-2, 1, 7})
    for (const bool is_function : {false, true}) {
      DelayedScaling recipe = {.margin = margin}, plain;
      if (is_function) recipe.amax_compute = plain.amax_compute = largest;
      DelayedScalingState got = delayed_scaling_state(recipe, 1), want = delayed_scaling_state(plain, 1);
      step(got, recipe, 3), step(want, plain, 3);
      EXPECT_EQ(scale_of(got), std::ldexp(scale_of(want), -static_cast<int>(margin)));
    }
}

TEST(DelayedScaling, F8_16_InfKeepsTheScaleUntilItHasLeft) {
  const DelayedScaling recipe = {.amax_history_len = 3};
  DelayedScalingState state = delayed_scaling_state(recipe, 1);
  step(state, recipe, 2);
  step(state, recipe, kInf);
  EXPECT_EQ(scale_of(state), 224);
  for (int i = 0; i < 2; ++i) {
    step(state, recipe, 1);
    EXPECT_EQ(scale_of(state), 224) << i;
  }
  step(state, recipe, 1);
  EXPECT_EQ(scale_of(state), 448);
}

TEST(DelayedScaling, F8_17_TheFirstStepHasScale1AndWritesRow0) {
  const DelayedScaling recipe = {.amax_history_len = 4};
  DelayedScalingState state = delayed_scaling_state(recipe, 2);
  const at::Tensor x = torch::tensor({1.0F, -500.0F});
  const QuantizedFp8 got = quantize_fp8_delayed(x, kE4M3, state, 1);
  EXPECT_TRUE(same_bits(dequantize_fp8(got), torch::tensor({1.0F, -448.0F})));
  at::Tensor history = torch::zeros({4, 2});
  history[0][1] = 500;
  EXPECT_TRUE(same_bits(state.amax_history, history));
  EXPECT_TRUE(same_bits(state.scale, torch::ones({2})));
  quantize_fp8_delayed(x / 2, kE4M3, state, 1);  // in the same step: the largest one stays
  EXPECT_TRUE(same_bits(state.amax_history, history));
  update_scales({&state}, kE4M3, recipe);
  EXPECT_TRUE(same_bits(state.scale, torch::tensor({1.0F, 448 / 500.0F})));
  EXPECT_TRUE(same_bits(dequantize_fp8(quantize_fp8_delayed(torch::tensor({500.0F}), kE4M3, state, 1)),
                        torch::tensor({448 * (1 / (448 / 500.0F))})));
}

// Two ranks of two layers each. The other rank's values arrive through the seam.
TEST(DelayedScaling, F8_22_RanksShareTheLargestAmax) {
  for (const bool reduce_amax : {true, false}) {
    const DelayedScaling recipe = {.amax_history_len = 2, .reduce_amax = reduce_amax};
    DelayedScalingState ranks[2][2];
    for (auto& rank : ranks)
      for (auto& layer : rank) layer = delayed_scaling_state(recipe, 2);
    ranks[0][0].amax_history[0].copy_(torch::tensor({1.0F, 8.0F}));
    ranks[1][0].amax_history[0].copy_(torch::tensor({2.0F, 4.0F}));
    ranks[0][1].amax_history[0].copy_(torch::tensor({0.0F, 16.0F}));
    ranks[1][1].amax_history[0].copy_(torch::tensor({32.0F, 0.0F}));
    at::Tensor sent[2];
    for (int i : {0, 1}) sent[i] = at::cat({ranks[i][0].amax_history[0], ranks[i][1].amax_history[0]});
    int calls = 0;
    for (int i : {0, 1})
      update_scales({&ranks[i][0], &ranks[i][1]}, kE4M3, recipe, [&](const at::Tensor& amax) {
        EXPECT_TRUE(same_bits(amax, sent[i]));
        amax.copy_(at::maximum(amax, sent[1 - i]));
        ++calls;
      });
    EXPECT_EQ(calls, reduce_amax ? 2 : 0);
    const auto scales = [&](int rank) { return at::cat({ranks[rank][0].scale, ranks[rank][1].scale}); };
    if (reduce_amax) {
      EXPECT_TRUE(same_bits(scales(0), torch::tensor({224.0F, 56.0F, 14.0F, 28.0F})));
      EXPECT_TRUE(same_bits(scales(1), scales(0)));
    } else {
      EXPECT_TRUE(same_bits(scales(0), torch::tensor({448.0F, 56.0F, 1.0F, 28.0F})));
      EXPECT_TRUE(same_bits(scales(1), torch::tensor({224.0F, 112.0F, 14.0F, 1.0F})));
    }
  }
}

TEST(DelayedScaling, F8_32_AHistoryOfAnotherLengthIsCutOrPadded) {
  DelayedScalingState state = delayed_scaling_state({.amax_history_len = 3}, 2);
  state.amax_history.copy_(torch::arange(6).view({3, 2}));
  resize_history(state, 5);
  EXPECT_TRUE(same_bits(state.amax_history,
                        at::cat({torch::arange(6).view({3, 2}), torch::zeros({2, 2})}).to(at::kFloat)));
  resize_history(state, 2);
  EXPECT_TRUE(same_bits(state.amax_history, torch::arange(4).view({2, 2}).to(at::kFloat)));
  EXPECT_THAT(error_of([&] { resize_history(state, 0); }), HasSubstr("got 0 steps"));
}

TEST(DelayedScaling, AStateOfAnotherShapeIsRefused) {
  const DelayedScaling recipe = {.amax_history_len = 2};
  for (const at::Tensor& history :
       {torch::zeros({2, 2}), torch::zeros({2}), torch::zeros({0, 3}), torch::zeros({3, 2}).t(),
        torch::zeros({2, 3}, at::kDouble), torch::zeros({2, 3}, at::kMeta), at::Tensor()}) {
    DelayedScalingState state = delayed_scaling_state(recipe, 3);
    state.amax_history = history;
    const auto expect = [](const std::string& error) {
      EXPECT_THAT(error, HasSubstr("the state has scales of [3] and a history of"));
    };
    expect(error_of([&] { update_scales({&state}, kE4M3, recipe); }));
    expect(error_of([&] { quantize_fp8_delayed(torch::ones({1}), kE4M3, state, 0); }));
    expect(error_of([&] { resize_history(state, 4); }));
  }
}

// 448 * 2^121 is infinite, and so is 448 / 1e-37; the scales are not.
TEST(DelayedScaling, F8_15_OnlyTheScaleMustFitFloat32) {
  const auto scale_with = [](int64_t margin, float amax) {
    const DelayedScaling recipe = {.amax_history_len = 2, .margin = margin};
    DelayedScalingState state = delayed_scaling_state(recipe, 1);
    step(state, recipe, amax);
    return scale_of(state);
  };
  EXPECT_EQ(scale_with(-121, 1e6F), std::ldexp(448 / 1e6F, 121));
  EXPECT_EQ(scale_with(7, 1e-37F), 3.5F / 1e-37F);
  EXPECT_EQ(scale_with(-126, 1e-10F), std::numeric_limits<float>::max());
}

// The example of docs/fp8.md.
TEST(DelayedScaling, AScaleWithoutAnInverseIsNotTaken) {
  for (const bool by_function : {false, true}) {
    DelayedScaling recipe = {
        .amax_history_len = 2, .amax_compute_algo = AmaxComputeAlgo::kMostRecent, .margin = 126};
    if (by_function) recipe.amax_compute = [](const at::Tensor& history) { return history[0].clone(); };
    DelayedScalingState state = delayed_scaling_state(recipe, 1);
    step(state, recipe, 448);
    EXPECT_EQ(scale_of(state), 0x1p-126F) << by_function;
    for (const float amax : {3e38F, 448 * 8.F}) {  // 0, and 2^-129, whose inverse is beyond float32
      step(state, recipe, amax);
      EXPECT_EQ(scale_of(state), 0x1p-126F) << by_function << amax;
    }
    step(state, recipe, 448 * 2);
    EXPECT_EQ(scale_of(state), 0x1p-127F) << by_function << ": 2^127 is a number of float32";
  }
}

TEST(DelayedScaling, AProductOfQuantizedOperandsIsNearTheExactOne) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({64, 96}) * 3, w = torch::randn({32, 96}) * 0.02;
  const DelayedScaling recipe = {.amax_history_len = 16};
  DelayedScalingState state = delayed_scaling_state(recipe, /*tensors=*/2);
  double error[2];
  for (int i : {0, 1}) {
    const QuantizedFp8 x8 =
        quantize_fp8_delayed(x, fp8_dtype(recipe.fp8_format, Fp8Pass::kForward), state, 0);
    const QuantizedFp8 w8 =
        quantize_fp8_delayed(w, fp8_dtype(recipe.fp8_format, Fp8Pass::kForward), state, 1);
    const at::Tensor y = at::matmul(dequantize_fp8(x8), dequantize_fp8(w8).t());
    update_scales({&state}, kE4M3, recipe);
    const at::Tensor exact = at::matmul(x.to(at::kDouble), w.to(at::kDouble).t());
    error[i] = ((y - exact).norm() / exact.norm()).item<double>();
  }
  // Half a unit in the last place is 1/16; errors of many products average out. The weight of the first step, whose
  // scale is 1, is among the subnormal numbers.
  EXPECT_LT(error[1], 0.05);
  EXPECT_LT(error[1], error[0]);
}

TEST(DelayedScaling, AFunctionOfAnotherShapeChangesNothing) {
  DelayedScaling recipe = {.amax_history_len = 2};
  recipe.amax_compute = [](const at::Tensor& history) { return history.fill_(7).max(); };
  DelayedScalingState state = delayed_scaling_state(recipe, 3);
  EXPECT_THAT(error_of([&] { update_scales({&state}, kE4M3, recipe); }),
              HasSubstr("return one amax for each column"));
  EXPECT_FALSE(state.amax_history.any().item<bool>());
  // Also where the first of two states is fine, and a reduction has found larger amaxes.
  recipe.amax_compute = [](const at::Tensor& history) { return history.size(1) == 1 ? history[0] : history; };
  DelayedScalingState first = delayed_scaling_state(recipe, 1);
  first.amax_history[0].fill_(1);
  EXPECT_NE(error_of([&] {
              update_scales({&first, &state}, kE4M3, recipe, [](const at::Tensor& amax) { amax.fill_(99); });
            }),
            "no error");
  EXPECT_FALSE(state.amax_history.any().item<bool>());
  EXPECT_TRUE(same_bits(first.amax_history, torch::tensor({1.0F, 0.0F}).view({2, 1})));
  EXPECT_EQ(scale_of(first), 1);
  EXPECT_THAT(error_of([&] { quantize_fp8_delayed(torch::ones({1}), kE4M3, state, 3); }),
              HasSubstr("there is no tensor 3 among the 3"));
}

}  // namespace
}  // namespace mantissa::delayed_scaling_test
