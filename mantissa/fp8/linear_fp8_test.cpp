#include "mantissa/fp8/linear_fp8.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/torch.h>

#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/hadamard.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"
#include "mantissa/io/safetensors.h"

namespace mantissa::linear_fp8_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

double error_of_product(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

/// Expects |got - want| <= 1e-6 times the sum of the factors' magnitudes.
void expect_within_sum(const at::Tensor& got, const at::Tensor& want, const at::Tensor& a,
                       const at::Tensor& b) {
  const at::Tensor bound = 1e-6 * at::matmul(a.abs(), b.abs());
  EXPECT_TRUE(((got - want).abs() <= bound).all().item<bool>()) << (got - want).abs().max();
}

TEST(LinearFp8, F8_23_F8_24_EqualsTheRecordedLayer) {
  const auto tensors = load_safetensors(test_data("fp8_linear_emulated.safetensors")).tensors;
  const auto value = [&](const std::string& name, int i) {
    const at::ScalarType dtype = name == "dy" ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
    return tensors.at(name + "_q").view(dtype).to(at::kFloat) * tensors.at("scale_invs")[i];
  };
  const at::Tensor dy = tensors.at("dy"), x = value("x", 0), w = value("w", 1), dy8 = value("dy", 2);
  const Pass got =
      pass(tensors.at("x"), tensors.at("w"), torch::zeros({32}), dy, state_of(Float8CurrentScaling{}));
  expect_within_sum(got.y, tensors.at("y_f32"), x, w.t());
  expect_within_sum(got.dx, tensors.at("dx_f32"), dy8, w);
  expect_within_sum(got.dw, tensors.at("dw_f32"), dy8.t(), x);
  EXPECT_TRUE(at::allclose(got.db, dy.sum(0), 1e-6, 1e-6));
}

TEST(LinearFp8, F8_25_SmallIntegersAreExact) {
  torch::manual_seed(1);
  const auto integers = [](at::IntArrayRef shape) { return torch::randint(-16, 17, shape).to(at::kFloat); };
  const at::Tensor x = integers({12, 40}), w = integers({24, 40}), b = integers({24}),
                   dy = integers({12, 24});
  const Pass got = pass(x, w, b, dy, state_of(DelayedScaling{.fp8_format = Fp8Format::kE4M3}));
  EXPECT_TRUE(at::equal(got.y, at::linear(x, w, b)));
  EXPECT_TRUE(at::equal(got.dx, at::matmul(dy, w)));
  EXPECT_TRUE(at::equal(got.dw, at::matmul(dy.t(), x)));
  EXPECT_TRUE(at::equal(got.db, dy.sum(0)));
}

// 9 has 4 significant bits, which E4M3 holds and E5M2 rounds to 8.
TEST(LinearFp8, F8_26_TheFormatOfGradientsIsTheRecipes) {
  const at::Tensor x = torch::ones({1, 1}), dy = torch::full({1, 1}, 9.0F);
  const auto gradient = [&](Fp8Format format) {
    return pass(x, x, {}, dy, state_of(DelayedScaling{.fp8_format = format})).dx.item<float>();
  };
  EXPECT_EQ(gradient(Fp8Format::kE4M3), 9);
  EXPECT_EQ(gradient(Fp8Format::kHybrid), 8);
  EXPECT_THAT(error_of([] { fp8_format_of("E5M2"); }), HasSubstr("use HYBRID"));
}

// Products of quantized factors are near those of the exact ones, in every recipe and shape. The bounds are those of
// the formats: half a unit in the last place is 6 % in E4M3, 12 % in E5M2, and up to 25 % in E2M1; over many products
// less.
TEST(LinearFp8, EveryShapeIsNearFloat64) {
  torch::manual_seed(2);
  for (const auto& [name, recipe] : recipes())
    for (const auto& [m, k, n] :
         std::vector<std::tuple<int, int, int>>{{33, 50, 70}, {128, 128, 128}, {1, 130, 40}}) {
      const at::Tensor x = torch::randn({m, k}), w = torch::randn({n, k}), b = torch::randn({n}),
                       dy = torch::randn({m, n});
      const auto state = state_of(recipe);
      const Pass got = pass(x, w, b, dy, state);
      const auto exact = [](const at::Tensor& a, const at::Tensor& b) {
        return at::matmul(a.to(at::kDouble), b.to(at::kDouble));
      };
      const double bound = name.starts_with("nvfp4") ? 0.3 : 0.12;
      EXPECT_LT(error_of_product(got.y - b, exact(x, w.t())), bound) << name << m;
      EXPECT_LT(error_of_product(got.dx, exact(dy, w)), bound) << name << m;
      EXPECT_LT(error_of_product(got.dw, exact(dy.t(), x)), bound) << name << m;
      EXPECT_TRUE(at::allclose(got.db, dy.sum(0), 1e-5, 1e-5)) << name;
    }
}

/// Compares the result and the gradients with float64 products of quantized factors. `by_rows` quantizes both factors of
/// the weight's gradient.
template <class Input, class Weight, class ByRows>
void expect_products_of(const Fp8Recipe& recipe, const Input& input, const Weight& weight,
                        const ByRows& by_rows) {
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({128, 128}), w = torch::randn({256, 128}), dy = torch::randn({128, 256});
  const Pass got = pass(x, w, {}, dy, state_of(recipe));
  const auto exact = [&](const at::Tensor& a, const at::Tensor& b) {
    return at::matmul(a.to(at::kDouble), b.to(at::kDouble));
  };
  const at::Tensor x8 = input(x), w8 = weight(w), dy8 = input(dy), w8t = weight(w.t().contiguous());
  expect_within_sum(got.y, exact(x8, w8.t()), x8, w8.t());
  expect_within_sum(got.dx, exact(dy8, w8t.t()), dy8, w8t.t());
  const at::Tensor dy8t = by_rows(dy.t()), x8t = by_rows(x.t());
  expect_within_sum(got.dw, exact(dy8t, x8t.t()), dy8t, x8t.t());
}

// The tolerance is that of float32 sums.
TEST(LinearFp8, BlocksAreMultipliedWithTheirScales) {
  constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;
  const auto rows = [](const at::Tensor& x) {
    return dequantize_fp8(quantize_fp8_blocks(x, kE4M3, Fp8Block::k1x128));
  };
  expect_products_of(
      Float8BlockScaling{}, rows,
      [](const at::Tensor& w) { return dequantize_fp8(quantize_fp8_blocks(w, kE4M3, Fp8Block::k128x128)); },
      rows);
  const auto mxfp8 = [](const at::Tensor& x) { return dequantize_fp8(quantize_mxfp8(x)); };
  expect_products_of(MXFP8BlockScaling{}, mxfp8, mxfp8, mxfp8);
  expect_products_of(
      MXFP8BlockScaling{.enable_2d_quantization = true}, mxfp8,
      [](const at::Tensor& w) { return dequantize_fp8(quantize_mxfp8(w, kE4M3, /*two_dimensional=*/true)); },
      mxfp8);
  const auto nvfp4 = [](const at::Tensor& x) { return dequantize_fp8(quantize_nvfp4(x)); };
  const auto square = [](const at::Tensor& w) {
    return dequantize_fp8(quantize_nvfp4(w, {.two_dimensional = true}));
  };
  expect_products_of(NVFP4BlockScaling{.stochastic_rounding = false, .random_hadamard_transform = false},
                     nvfp4, square, nvfp4);
  // Only the factors of the weight's gradient are transformed.
  expect_products_of(NVFP4BlockScaling{.stochastic_rounding = false}, nvfp4, square, [](const at::Tensor& x) {
    return dequantize_fp8(quantize_nvfp4(hadamard_transform(x)));
  });
}

// These scales are no powers of two, or so small that bfloat16 has the values only as subnormal numbers.
TEST(LinearFp8, ValuesThatBFloat16LacksAreMultipliedInFloat32) {
  const Float8BlockScaling exact = {.power_of_two = false};
  const auto rows = [&](const at::Tensor& x) {
    return dequantize_fp8(quantize_fp8_blocks(x, at::kFloat8_e4m3fn, Fp8Block::k1x128, exact));
  };
  expect_products_of(
      exact, rows,
      [&](const at::Tensor& w) {
        return dequantize_fp8(quantize_fp8_blocks(w, at::kFloat8_e4m3fn, Fp8Block::k128x128, exact));
      },
      rows);
  const at::Tensor small = torch::full({1, 32}, 0x1p-124F), large = torch::full({1, 32}, 0x1p120F);
  EXPECT_EQ(linear_fp8(small, large, {}, state_of(MXFP8BlockScaling{})).item<float>(), 2);
}

// The rounding of codes to 16 bits would be an error of 1e-3.
TEST(LinearFp8, AutocastLeavesTheProductInFloat32) {
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({64, 512}), w = torch::randn({32, 512}), dy = torch::randn({64, 32});
  for (const auto& [name, recipe] : recipes()) {
    const Pass want = pass(x, w, {}, dy, state_of(recipe));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Pass got = pass(x, w, {}, dy, state_of(recipe));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_TRUE(same_bits(got.y, want.y)) << name;
    EXPECT_TRUE(same_bits(got.dx, want.dx)) << name;
    EXPECT_TRUE(same_bits(got.dw, want.dw)) << name;
  }
}

TEST(LinearFp8, TheResultCanBeChangedInPlace) {
  const at::Tensor x = torch::ones({2, 3, 16}).set_requires_grad(true), w = torch::ones({4, 16});
  const at::Tensor y = linear_fp8(x, w, {}, state_of(DelayedScaling{}));
  y.mul_(2).relu_();
  y.sum().backward();
  EXPECT_TRUE(same_bits(y.detach(), torch::full({2, 3, 4}, 32.0F)));
  EXPECT_TRUE(same_bits(x.grad(), torch::full({2, 3, 16}, 8.0F)));
}

// The product of the two scales is inf, or a subnormal number with few digits.
TEST(LinearFp8, ScalesWhoseProductLeavesTheRangeOfFloat32) {
  at::Tensor x = torch::full({1, 16}, 1e36F), w = torch::zeros({2, 16});
  x[0][3] = 0, w[0][3] = 1e10F;
  const auto state = state_of(Float8CurrentScaling{});
  EXPECT_TRUE(same_bits(linear_fp8(x, w, {}, state), torch::zeros({1, 2})));
  const at::Tensor small = torch::full({1, 4096}, 3e-21F);
  EXPECT_NEAR(linear_fp8(small, small, {}, state).item<float>() / (4096 * 9e-42), 1, 1e-5);
  const at::Tensor large = torch::full({1, 16}, 1e30F);
  EXPECT_NEAR(linear_fp8(large, small.narrow(1, 0, 16), {}, state).item<float>() / (16 * 3e9), 1, 1e-5);
}

TEST(LinearFp8, ABackwardPassFreesTheGraph) {
  const at::Tensor x = torch::ones({2, 32}).set_requires_grad(true), w = torch::ones({4, 32});
  for (const auto& [name, recipe] : recipes()) {
    const at::Tensor y = linear_fp8(x, w, {}, state_of(recipe)).sum();
    const auto gradient = [&](bool retain_graph) {
      return torch::autograd::grad({y}, {x}, {}, retain_graph)[0];
    };
    const at::Tensor first = gradient(/*retain_graph=*/true);
    EXPECT_TRUE(same_bits(gradient(/*retain_graph=*/false), first)) << name;
    EXPECT_THAT(error_of([&] { gradient(false); }), HasSubstr("second time")) << name;
  }
}

// The product of these scales leaves float32, so the sums are float32 first.
TEST(LinearFp8, AProductWithoutTermsHasTheDtypeOfItsInput) {
  const auto state = state_of(DelayedScaling{.amax_history_len = 2});
  state->forward.scale.fill_(1e-30F);
  const at::Tensor x = torch::empty({2, 0}, at::kBFloat16), w = torch::empty({3, 0}, at::kBFloat16);
  EXPECT_TRUE(same_bits(linear_fp8(x, w, {}, state), torch::zeros({2, 3}, at::kBFloat16)));
  EXPECT_EQ(linear_fp8(x, w, torch::ones({3}), state).scalar_type(), at::kBFloat16);
}

TEST(LinearFp8, RowsAndBatchDimensionsAndDtypes) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({2, 3, 40}), w = torch::randn({8, 40}), dy = torch::randn({2, 3, 8});
  const Pass flat = pass(x.view({6, 40}), w, {}, dy.view({6, 8}), state_of(Float8CurrentScaling{}));
  const Pass deep = pass(x, w, {}, dy, state_of(Float8CurrentScaling{}));
  EXPECT_TRUE(same_bits(deep.y, flat.y.view({2, 3, 8})));
  EXPECT_TRUE(same_bits(deep.dx, flat.dx.view({2, 3, 40})));
  EXPECT_TRUE(same_bits(deep.dw, flat.dw));
  const Pass bf16 = pass(x.to(at::kBFloat16), w, {}, dy.to(at::kBFloat16), state_of(Float8CurrentScaling{}));
  EXPECT_EQ(bf16.y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(bf16.dx.scalar_type(), at::kBFloat16);
  EXPECT_EQ(bf16.dw.scalar_type(), at::kFloat);
  const Pass none = pass(torch::empty({0, 40}), w, {}, torch::empty({0, 8}), state_of(MXFP8BlockScaling{}));
  EXPECT_EQ(none.y.sizes(), (std::vector<int64_t>{0, 8}));
  EXPECT_FALSE(none.dw.any().item<bool>());
}

TEST(LinearFp8, DelayedScalingLearnsTheScalesOfAllFactors) {
  torch::manual_seed(6);
  const at::Tensor x = torch::randn({32, 16}) * 100, w = torch::randn({8, 16}) * 0.01,
                   dy = torch::randn({32, 8}) * 1e-5;
  const auto state = state_of(DelayedScaling{.amax_history_len = 2});
  const at::Tensor exact = at::matmul(dy.to(at::kDouble), w.to(at::kDouble));
  const double first = error_of_product(pass(x, w, {}, dy, state).dx, exact);
  state->update_scales();
  EXPECT_EQ(state->forward.scale[0].item<float>(), 448 / x.abs().max().item<float>());
  EXPECT_EQ(state->forward.scale[1].item<float>(), 448 / w.abs().max().item<float>());
  EXPECT_EQ(state->backward.scale[0].item<float>(), 57344 / dy.abs().max().item<float>());
  const double second = error_of_product(pass(x, w, {}, dy, state).dx, exact);
  EXPECT_LT(second, 0.12);
  EXPECT_LT(second, first);
}

TEST(LinearFp8, StochasticGradientsRepeatWithTheirSeed) {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({32, 32}), w = torch::randn({32, 32}), dy = torch::randn({32, 32});
  const auto gradient = [&](uint64_t seed) {
    return pass(x, w, {}, dy, state_of(NVFP4BlockScaling{}, seed)).dx;
  };
  EXPECT_TRUE(same_bits(gradient(1), gradient(1)));
  EXPECT_FALSE(same_bits(gradient(1), gradient(2)));
}

/// Counts the operators that `work` calls on this thread.
template <class Work>
int operators_of(const Work& work) {
  static thread_local int calls;
  calls = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        ++calls;
        return nullptr;
      }));
  work();
  at::removeCallback(handle);
  return calls;
}

TEST(LinearFp8, QuantizesNothingForGradientsThatNobodyNeeds) {
  torch::manual_seed(12);
  const at::Tensor x = torch::randn({32, 32}).set_requires_grad(true),
                   w = torch::randn({32, 32}).set_requires_grad(true), dy = torch::randn({32, 32});
  for (const auto& [name, recipe] : recipes()) {
    const auto state = state_of(recipe);
    const at::NoGradGuard no_grad;
    const at::Tensor x_alone = x.detach(), w_alone = w.detach();
    EXPECT_EQ(operators_of([&] { linear_fp8(x, w, {}, state); }),
              operators_of([&] { linear_fp8(x_alone, w_alone, {}, state); }))
        << name;
  }
  // Each gradient that NVFP4 quantizes takes a stream of random numbers.
  const auto streams = [&](const std::vector<at::Tensor>& inputs) {
    const auto state = state_of(NVFP4BlockScaling{});
    torch::autograd::grad({linear_fp8(x, w, {}, state)}, inputs, {dy});
    return state->stream();
  };
  EXPECT_EQ(streams({x}), 1);
  EXPECT_EQ(streams({x, w}), 2);
}

TEST(LinearFp8, ALoadedStateContinuesBitForBit) {
  torch::manual_seed(13);
  const at::Tensor x = torch::randn({32, 32}), w = torch::randn({32, 32}), dy = torch::randn({32, 32});
  for (const auto& [name, recipe] : recipes()) {
    const auto state = state_of(recipe, /*seed=*/~uint64_t{0}), loaded = state_of(recipe);
    const auto step = [&](Fp8LinearState& which, const std::shared_ptr<Fp8LinearState>& its, float factor) {
      const Pass result = pass(x * factor, w, {}, dy * factor, its);
      which.update_scales();
      return result;
    };
    step(*state, state, 3);
    pass(x, w, {}, dy, state);  // a step in progress
    const StateDict saved = snapshot(state->state_dict());
    loaded->load_state_dict(StateReader(saved));
    EXPECT_EQ(difference(loaded->state_dict(), saved), "") << name;
    EXPECT_EQ(loaded->seed(), ~uint64_t{0});
    EXPECT_EQ(loaded->stream(), state->stream());
    for (const float factor : {1.0F, 8.0F, 0.5F}) {
      const Pass want = step(*state, state, factor), got = step(*loaded, loaded, factor);
      EXPECT_TRUE(same_bits(got.y, want.y)) << name;
      EXPECT_TRUE(same_bits(got.dx, want.dx)) << name;
      EXPECT_TRUE(same_bits(got.dw, want.dw)) << name;
    }
    EXPECT_EQ(difference(loaded->state_dict(), state->state_dict()), "") << name;
  }
}

TEST(LinearFp8, F8_32_AStateThatDoesNotFitChangesNothing) {
  const auto state = state_of(DelayedScaling{.amax_history_len = 4}, 7),
             longer = state_of(DelayedScaling{.amax_history_len = 6}, 8);
  longer->forward.amax_history.fill_(3);
  const auto load = [&](StateDict from) { state->load_state_dict(StateReader(from)); };
  const StateDict before = snapshot(state->state_dict());
  StateDict wrong = snapshot(longer->state_dict());
  wrong["backward"] = StateDict{{"scale", torch::ones({3})}, {"amax_history", torch::zeros({6, 2})}};
  EXPECT_THAT(error_of([&] { load(wrong); }), HasSubstr("backward.scale: has shape [3]"));
  EXPECT_THAT(error_of([&] { load({{"seed", 1}, {"stream", 0}}); }), HasSubstr("forward"));
  EXPECT_EQ(difference(state->state_dict(), before), "");
  load(longer->state_dict());
  EXPECT_EQ(state->seed(), 8);
  EXPECT_TRUE(same_bits(state->forward.amax_history, torch::full({4, 3}, 3.0F)));
}

// The backward half fails after the forward half is known.
TEST(LinearFp8, AnUpdateThatFailsChangesNeitherState) {
  DelayedScaling recipe = {.amax_history_len = 3};
  recipe.amax_compute = [](const at::Tensor& history) {
    return history.size(1) == 2 ? torch::zeros({7}) : std::get<0>(history.max(0));
  };
  const auto state = state_of(recipe);
  state->forward.amax_history[0].fill_(5);
  const StateDict before = snapshot(state->state_dict());
  EXPECT_THAT(error_of([&] { state->update_scales([](const at::Tensor& amax) { amax.fill_(99); }); }),
              HasSubstr("return one amax for each column"));
  EXPECT_EQ(difference(state->state_dict(), before), "");
}

TEST(LinearFp8, ACallThatIsRefusedWritesNoHistory) {
  const at::Tensor x = torch::ones({2, 16}), w = torch::ones({4, 16}), meta = w.to(at::kMeta);
  const auto state = state_of(DelayedScaling{.amax_history_len = 2});
  const StateDict before = snapshot(state->state_dict());
  const auto refused = [&](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           std::optional<bool> is_first = {}) {
    const std::string error = error_of([&] { linear_fp8(input, weight, bias, state, is_first); });
    EXPECT_EQ(difference(state->state_dict(), before), "") << error;
    return error;
  };
  EXPECT_THAT(refused(x, w.to(at::kDouble), {}), HasSubstr("linear_fp8: got Double"));
  EXPECT_THAT(refused(x.to(at::kDouble), w, {}), HasSubstr("linear_fp8: got Double"));
  EXPECT_THAT(refused(x, meta, {}), HasSubstr("linear_fp8: the input is on cpu, the weight on meta"));
  EXPECT_THAT(refused(x, w, torch::ones({4}, at::kMeta)), HasSubstr("and the bias on meta"));
  EXPECT_THAT(refused(x, w, {}, false), HasSubstr("no call with true has kept"));
}

TEST(LinearFp8, ANegatedViewIsReadAsItsValues) {
  const at::Tensor ones = torch::ones({4, 32}), negated = at::_neg_view(ones);
  for (const auto& [name, recipe] : recipes())
    EXPECT_TRUE(same_bits(linear_fp8(negated, ones, {}, state_of(recipe)),
                          linear_fp8(ones.neg(), ones, {}, state_of(recipe))))
        << name;
}

// Evaluation records amaxes as well; the next update_scales() uses them.
TEST(LinearFp8, EvaluationRecordsTheAmaxesOfItsInputs) {
  const auto state = state_of(DelayedScaling{.amax_history_len = 2});
  const at::NoGradGuard no_grad;
  linear_fp8(torch::full({2, 16}, 1000.0F), torch::full({4, 16}, 2.0F), {}, state);
  EXPECT_TRUE(same_bits(state->forward.amax_history[0], torch::tensor({1000.0F, 2.0F, 0.0F})));
}

TEST(LinearFp8, NaNReachesTheResult) {
  at::Tensor x = torch::ones({2, 32});
  x[1][3] = kNaN;
  for (const auto& [name, recipe] : recipes()) {
    const at::Tensor y = linear_fp8(x, torch::ones({4, 32}), {}, state_of(recipe));
    EXPECT_TRUE(y[1].isnan().all().item<bool>()) << name;
    EXPECT_FALSE(y[0].isnan().any().item<bool>()) << name;
  }
}

TEST(LinearFp8, RefusesWhatDoesNotFit) {
  const at::Tensor x = torch::ones({2, 32}), w = torch::ones({4, 32});
  const auto state = state_of(Float8CurrentScaling{});
  EXPECT_THAT(error_of([&] { linear_fp8(x, w, {}, nullptr); }), HasSubstr("got no state"));
  EXPECT_THAT(error_of([&] { linear_fp8(x, w.t(), {}, state); }),
              HasSubstr("does not fit a weight of [32, 4]"));
  EXPECT_THAT(error_of([&] { linear_fp8(x, w, torch::ones({5}), state); }), HasSubstr("a bias of [5]"));
  EXPECT_THAT(error_of([&] { state_of(DelayedScaling{.amax_history_len = 0}); }),
              HasSubstr("at least 1 step"));
  const at::Tensor leaf = x.clone().set_requires_grad(true), y = linear_fp8(leaf, w, {}, state);
  EXPECT_THAT(error_of([&] { torch::autograd::grad({y.sum()}, {leaf}, {}, true, /*create_graph=*/true); }),
              HasSubstr("no second derivative"));
}

}  // namespace
}  // namespace mantissa::linear_fp8_test
