#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::statistics_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Key;

constexpr Fp8Format kE4M3 = Fp8Format::kE4M3;

/// Returns the statistics of one product of x with a weight of ones, and of its backward pass.
LayerStatistics sampled(const at::Tensor& x, const Fp8Recipe& recipe, const at::Tensor& dy = {},
                        LayerSampling sampling = LayerSampling::kTensors) {
  const auto state = state_of(recipe);
  state->sample(sampling);
  const at::Tensor w = torch::ones({1, x.size(-1)}).to(x.scalar_type());
  pass(x, w, {}, dy.defined() ? dy : torch::ones({x.size(0), 1}).to(x.scalar_type()), state);
  return state->statistics();
}

TensorStatistics of_input(const at::Tensor& x, const Fp8Recipe& recipe) {
  return sampled(x, recipe).tensors.at("input");
}

at::Tensor row(std::vector<float> values) { return torch::tensor(values).unsqueeze(0); }

TEST(Fp8Statistics, CountsByHandWithScaleOne) {
  // E4M3: 464 is rounded to 448, and 2^-10 to 0, as ties. NaN counts nowhere.
  const at::Tensor x = row({0, 1, 464, 465, -1000, kInf, kNaN, 0x1p-10F, -0x1p-11F, 0x1.8p-10F});
  const LayerStatistics all = sampled(x, DelayedScaling{}, torch::tensor({{0x1p-18F}}));
  EXPECT_EQ(all.tensors.at("input"),
            (TensorStatistics{
                .numel = 10, .underflows = 2, .overflows = 3, .amax = kInf, .scale_min = 1, .scale_max = 1}));
  EXPECT_EQ(all.tensors.at("input").overflow_share(), 0.3);
  EXPECT_EQ(all.tensors.at("input").underflow_share(), 0.2);
  EXPECT_EQ(all.tensors.at("weight"),
            (TensorStatistics{.numel = 10, .amax = 1, .scale_min = 1, .scale_max = 1}));
  // E5M2, whose smallest number is 2^-16.
  EXPECT_EQ(all.tensors.at("grad_output").underflows, 1);
  EXPECT_THAT(all.products, IsEmpty());
}

TEST(Fp8Statistics, GradientsHaveTheLimitOfTheirFormat) {
  const at::Tensor x = torch::ones({3, 2}), dy = torch::tensor({{61439.F}, {61440.F}, {-kInf}});
  EXPECT_EQ(sampled(x, DelayedScaling{}, dy).tensors.at("grad_output").overflows, 2);
  EXPECT_EQ(sampled(x, DelayedScaling{.fp8_format = kE4M3}, dy).tensors.at("grad_output").overflows, 3);
}

TEST(Fp8Statistics, ScalesAreThoseOfTheRecipe) {
  using Range = std::pair<double, double>;
  const auto range = [](const TensorStatistics& counted) {
    return Range(counted.scale_min.value_or(-1), counted.scale_max.value_or(-1));
  };
  EXPECT_EQ(range(of_input(row({3, -1, 0}), Float8CurrentScaling{})), Range(448.0F / 3.0F, 448.0F / 3.0F));
  // Blocks of 128, with amaxes of 448, 3, and 0; the last one does not count.
  const at::Tensor blocks = torch::cat({torch::full({128}, 448), torch::full({128}, 3), torch::zeros({70})})
                                .unsqueeze(0)
                                .to(at::kFloat);
  EXPECT_EQ(range(of_input(blocks, Float8BlockScaling{})), Range(1.0, 128.0));
  EXPECT_EQ(range(of_input(blocks, Float8BlockScaling{.power_of_two = false})), Range(1.0F, 448.0F / 3.0F));
  EXPECT_EQ(range(of_input(blocks, MXFP8BlockScaling{})), Range(1.0, 128.0));
  // 2688 / 448 = 6 for the tensor; the blocks' own scales are 448 and 3, rounded to 3.
  EXPECT_EQ(range(of_input(blocks, NVFP4BlockScaling{})), Range(6.0F / 448, 6.0F / 3));
  // Without a value other than 0 there is only the scale of a whole tensor.
  EXPECT_EQ(range(of_input(row({0, kNaN}), MXFP8BlockScaling{})), Range(-1.0, -1.0));
  EXPECT_EQ(range(of_input(row({0, kNaN}), DelayedScaling{})), Range(1.0, 1.0));
}

TEST(Fp8Statistics, DelayedScalingReportsTheScaleThatItUsed) {
  const auto state = state_of(DelayedScaling{});
  pass(row({3, 1}), torch::full({1, 2}, 7.0F), {}, torch::ones({1, 1}), state);
  state->update_scales();
  state->sample(LayerSampling::kTensors);
  pass(row({1e-6F, 3.5F}), torch::full({1, 2}, 7.0F), {}, torch::ones({1, 1}), state);
  const LayerStatistics got = state->statistics();
  const float scale = 448.0F / 3.0F;
  EXPECT_EQ(
      got.tensors.at("input"),
      (TensorStatistics{
          .numel = 2, .underflows = 1, .overflows = 1, .amax = 3.5, .scale_min = scale, .scale_max = scale}));
  EXPECT_EQ(got.tensors.at("weight").scale_max, 64);
  EXPECT_EQ(got.tensors.at("grad_output").scale_max, 57344);
}

TEST(Fp8Statistics, NVFP4CountsCodesOfFourBits) {
  // The tensor's scale is 448, the block's 448, the factor 1: 0.25 is a tie and becomes 0, and 0.26 becomes 0.5.
  at::Tensor x = torch::zeros({1, 16});
  x[0][0] = 6, x[0][1] = 0.25, x[0][2] = -0.1, x[0][3] = 0.26;
  TensorStatistics got = of_input(x, NVFP4BlockScaling{});
  EXPECT_EQ(got, (TensorStatistics{.numel = 16, .underflows = 2, .amax = 6, .scale_min = 1, .scale_max = 1}));
  // 7.2 after a block scale of 2^-8, which is a subnormal number and was rounded down from 1.2 * 2^-8.
  at::Tensor small = torch::zeros({1, 32});
  small[0][0] = 6, small[0][16] = 2.4F / 512 / (448.0F / 6);
  EXPECT_EQ(of_input(small, NVFP4BlockScaling{}).overflows, 1);
  // A block with inf has the largest scale, so its other values vanish. NaN spoils its block: nothing counts.
  x = torch::ones({1, 32});
  x[0][0] = kInf, x[0][16] = kNaN;
  got = of_input(x, NVFP4BlockScaling{});
  EXPECT_EQ(got.overflows, 1);
  EXPECT_EQ(got.underflows, 15);
  EXPECT_EQ(got.scale_max, 1 / 448.0F);
}

/// Returns what the recipe restores of an input, by the functions for tensors.
at::Tensor restored(const at::Tensor& x, const Fp8Recipe& recipe) {
  const int64_t width = std::holds_alternative<Float8BlockScaling>(recipe) ? 128 : 32, cols = x.size(1);
  const at::Tensor padded = at::constant_pad_nd(x, {0, (width - cols % width) % width});
  const at::Tensor values = std::visit(
      c10::overloaded(
          [&](const DelayedScaling&) { return cast_to_fp8(padded, at::kFloat8_e4m3fn).to(at::kFloat); },
          [&](const Float8CurrentScaling&) {
            return dequantize_fp8(quantize_fp8_current(padded, at::kFloat8_e4m3fn));
          },
          [&](const Float8BlockScaling&) {
            return dequantize_fp8(quantize_fp8_blocks(padded, at::kFloat8_e4m3fn, Fp8Block::k1x128));
          },
          [&](const MXFP8BlockScaling&) { return dequantize_fp8(quantize_mxfp8(padded)); },
          [&](const NVFP4BlockScaling&) { return dequantize_fp8(quantize_nvfp4(padded)); }),
      recipe);
  return values.narrow(1, 0, cols);
}

TEST(Fp8Statistics, EveryRecipeCountsWhatItRestoresAsZero) {
  torch::manual_seed(3);
  for (const auto& [name, recipe] : recipes())
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(name);
      const at::Tensor x =
          (torch::randn({5, 300}) * torch::randn({5, 300}).mul(8).exp2()).clamp(-6e4, 6e4).to(dtype);
      const at::Tensor wanted = x.ne(0).logical_and(restored(x, recipe).eq(0)).sum();
      const TensorStatistics got = of_input(x, recipe);
      EXPECT_EQ(got.underflows, wanted.item<int64_t>());
      EXPECT_EQ(got.amax, x.abs().max().item<double>());
      EXPECT_EQ(got.numel, 1500);
      if (name != "delayed" && !name.starts_with("nvfp4")) {
        EXPECT_EQ(got.overflows, 0) << "amax just fits";
      }
      EXPECT_GT(got.underflows, 0);
    }
}

TEST(Fp8Statistics, SamplingChangesNoBit) {
  torch::manual_seed(4);
  const at::Tensor x = wide({6, 40}), w = wide({24, 40}), b = wide({24}), dy = wide({6, 24});
  for (const auto& [name, recipe] : recipes()) {
    SCOPED_TRACE(name);
    const auto plain = state_of(recipe, 7), state = state_of(recipe, 7);
    state->sample(LayerSampling::kTensorsAndErrors);
    const Pass want = pass(x, w, b, dy, plain), got = pass(x, w, b, dy, state);
    EXPECT_TRUE(same_bits(got.y, want.y) && same_bits(got.dx, want.dx) && same_bits(got.dw, want.dw));
    EXPECT_EQ(state->stream(), plain->stream());
    EXPECT_THAT(plain->statistics().tensors, IsEmpty());
    EXPECT_THAT(state->statistics().products,
                ElementsAre(Key("grad_input"), Key("grad_weight"), Key("output")));
  }
}

TEST(Fp8Statistics, ErrorsByHand) {
  // 17 becomes 16 in E4M3, and 18 stays.
  const auto state = state_of(DelayedScaling{.fp8_format = kE4M3});
  state->sample(LayerSampling::kTensorsAndErrors);
  const at::Tensor x = torch::tensor({{17.F}, {18.F}}).requires_grad_(),
                   w = torch::full({1, 1}, 2.F).requires_grad_();
  at::Tensor input = x * 1;
  const at::Tensor y = linear_fp8(input, w, torch::full({1}, 100.F), state);
  input.detach().zero_();  // a layer keeps its codes, so a model may overwrite an input
  y.sum().backward();
  const LayerStatistics got = state->statistics();
  EXPECT_EQ(got.products.at("output").difference, 2);
  EXPECT_EQ(got.products.at("output").magnitude, 70);
  EXPECT_EQ(got.products.at("output").relative(), 2.0 / 70);
  EXPECT_EQ(got.products.at("grad_input").relative(), 0);
  EXPECT_EQ(got.products.at("grad_input").magnitude, 4);
  EXPECT_EQ(got.products.at("grad_weight").relative(), 1.0 / 35);
}

TEST(Fp8Statistics, ErrorsOfNothingAndOfNaN) {
  EXPECT_EQ(ProductError{}.relative(), 0);
  const auto error_of = [](const at::Tensor& x) {
    return sampled(x, Float8CurrentScaling{}, {}, LayerSampling::kTensorsAndErrors)
        .products.at("output")
        .relative();
  };
  EXPECT_EQ(error_of(torch::zeros({2, 2})), 0);
  EXPECT_TRUE(std::isnan(error_of(row({1, kNaN}))));
  EXPECT_TRUE(std::isnan(error_of(row({1, kInf}))));
}

TEST(Fp8Statistics, CallsAddUpAndAnEmptyBatchAddsNothing) {
  const auto state = state_of(Float8CurrentScaling{});
  const at::Tensor w = torch::ones({1, 2});
  state->sample(LayerSampling::kTensorsAndErrors);
  pass(torch::zeros({0, 2}), w, {}, torch::zeros({0, 1}), state);
  EXPECT_THAT(state->statistics().tensors, ElementsAre(Key("weight")));
  EXPECT_THAT(state->statistics().products, ElementsAre(Key("grad_weight")));
  pass(row({448, 0.1F}), w, {}, torch::ones({1, 1}), state);
  pass(row({4480, 0.1F}), w, {}, torch::ones({1, 1}), state);
  EXPECT_EQ(state->statistics().tensors.at("input"),
            (TensorStatistics{.numel = 4, .underflows = 0, .amax = 4480, .scale_min = 0.1F, .scale_max = 1}));
  state->sample(LayerSampling::kTensors);
  EXPECT_THAT(state->statistics().tensors, IsEmpty());
  state->sample(LayerSampling::kNone);
  pass(row({1, 1}), w, {}, torch::ones({1, 1}), state);
  EXPECT_THAT(state->statistics().tensors, IsEmpty());
}

TEST(Fp8Statistics, KeptCodesOfAWeightHaveTheScaleOfTheirStep) {
  const auto state = state_of(DelayedScaling{});
  const at::Tensor x = row({1, 1}), w = torch::full({1, 2}, 7.0F);
  state->sample(LayerSampling::kTensors);
  pass(x, w, {}, torch::ones({1, 1}), state, true);
  state->update_scales();
  pass(x, w, {}, torch::ones({1, 1}), state, false);
  const TensorStatistics weight = state->statistics().tensors.at("weight");
  EXPECT_EQ(weight.numel, 4);
  EXPECT_EQ(weight.scale_max, 1);  // not the new 64
}

TEST(Fp8Statistics, EvaluationOfALayerCountsNothing) {
  const auto state = state_of(Float8CurrentScaling{});
  torch::nn::Linear layer(4, 2);
  mark_weight(layer->weight, std::make_shared<Fp8TrainingRule>(state));
  state->sample(LayerSampling::kTensorsAndErrors);
  const Fp8Autocast region;
  {
    const at::NoGradGuard no_grad;
    layer(torch::ones({3, 4}));
  }
  EXPECT_THAT(state->statistics().tensors, IsEmpty());
  layer(torch::ones({3, 4})).sum().backward();
  EXPECT_EQ(state->statistics().tensors.at("input").numel, 12);
  EXPECT_EQ(state->statistics().products.size(), 2);  // the input needs no gradient
}

}  // namespace
}  // namespace mantissa::statistics_test
