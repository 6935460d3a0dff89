#include "mantissa/fp8/attention_fp8.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::attention_fp8_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

struct Factors {
  explicit Factors(int64_t groups = 4, at::ScalarType dtype = at::kFloat) {
    torch::manual_seed(5);
    const auto leaf = [&](int64_t heads) {
      return torch::randn({2, heads, 7, 6}).to(dtype).requires_grad_();
    };
    q = leaf(4), k = leaf(groups), v = leaf(groups);
    dy = torch::randn({2, 4, 7, 6}).to(dtype);
  }
  AttentionCall call() const { return {.query = q, .key = k, .value = v}; }
  AttentionCall causal() const { return {.query = q, .key = k, .value = v, .is_causal = true}; }
  at::Tensor q, k, v, dy;
};

at::Tensor rounded(const at::Tensor& x, at::ScalarType dtype = at::kFloat8_e4m3fn) {
  return dequantize_fp8(quantize_fp8_current(x.detach(), dtype));
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(AttentionFp8, EqualsTheFormulaOfQuantizedFactors) {
  Factors f;
  const at::Tensor y = attention_fp8(f.causal(), Fp8AttentionState(Float8CurrentScaling{}));
  y.backward(f.dy);
  const double root = std::sqrt(6.0);
  const at::Tensor later = torch::ones({7, 7}, at::kBool).triu(1);
  const at::Tensor q = rounded(f.q), k = rounded(f.k), v = rounded(f.v);
  const at::Tensor p = (q.matmul(k.transpose(-1, -2)) / root).masked_fill(later, -kInf).softmax(-1),
                   p8 = rounded(p);
  EXPECT_LT(distance(y.detach(), p8.matmul(v)), 1e-6);
  const at::Tensor dy = rounded(f.dy, at::kFloat8_e5m2), dp = dy.matmul(v.transpose(-1, -2));
  const at::Tensor ds = rounded(p * (dp - (dp * p).sum(-1, true)) / root, at::kFloat8_e5m2);
  EXPECT_LT(distance(f.v.grad(), p8.transpose(-1, -2).matmul(dy)), 1e-6);
  // A difference in the last digit of a gradient of the scores may change its code.
  EXPECT_LT(distance(f.q.grad(), ds.matmul(k)), 1e-2);
  EXPECT_LT(distance(f.k.grad(), ds.transpose(-1, -2).matmul(q)), 1e-2);
}

TEST(AttentionFp8, IsNearHighPrecisionWithMasksAndSharedKeys) {
  for (const int64_t groups : {1, 2, 4}) {
    const Factors f(groups);
    AttentionCall masked = f.call();
    masked.mask = torch::rand({2, 1, 7, 7}) > 0.3;
    masked.mask.select(-1, 0).fill_(true);
    for (const AttentionCall& call : {f.call(), f.causal(), masked}) {
      const double error = distance(attention_fp8(call, Fp8AttentionState(Float8CurrentScaling{})).detach(),
                                    attend(call).detach());
      EXPECT_LT(error, 0.06);
      EXPECT_GT(error, 0.005) << "FP8 shows";
    }
  }
}

// As on another device.
TEST(AttentionFp8, OperatorsAgreeWithTheKernels) {
  for (const Fp8Recipe& recipe :
       {Fp8Recipe(Float8CurrentScaling{}), Fp8Recipe(DelayedScaling{.amax_history_len = 2})}) {
    Factors want(2), got(2);
    const Fp8AttentionState kernels(recipe), operators(recipe);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor y = attention_fp8(want.causal(), kernels);
      y.backward(want.dy);
      {
        const ForcedPath path(DevicePath::kOperators);
        const at::Tensor other = attention_fp8(got.causal(), operators);
        EXPECT_LT(distance(other.detach(), y.detach()), 1e-6);
        other.backward(got.dy);
      }
      for (const Fp8AttentionState& each : {kernels, operators})
        update_scales({each.scores.get(), each.context.get()});
    }
    EXPECT_LT(distance(got.v.grad(), want.v.grad()), 1e-6);
    EXPECT_LT(distance(got.q.grad(), want.q.grad()), 1e-2) << "a last digit may change a code";
    EXPECT_LT(distance(got.k.grad(), want.k.grad()), 1e-2);
  }
}

TEST(AttentionFp8, ARowWithoutPositionsIsZeroAndNaNStaysInItsRow) {
  Factors f;
  AttentionCall call = f.call();
  call.mask = torch::ones({7, 7}, at::kBool);
  call.mask[2].fill_(false);
  {
    const at::NoGradGuard no_grad;
    f.q[0][1][3][0] = NAN;
  }
  const at::Tensor y = attention_fp8(call, Fp8AttentionState(Float8CurrentScaling{})).detach();
  EXPECT_TRUE(y.select(2, 2).eq(0).all().item<bool>());
  EXPECT_TRUE(y[0][1][3].isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 6);
}

TEST(AttentionFp8, NoPositionsGiveNoResult) {
  const at::Tensor none = torch::zeros({2, 4, 0, 6}, torch::requires_grad());
  const at::Tensor y = attention_fp8({.query = none, .key = none, .value = none, .is_causal = true},
                                     Fp8AttentionState(DelayedScaling{}));
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 4, 0, 6}));
  y.sum().backward();
  EXPECT_EQ(none.grad().numel(), 0);
}

TEST(AttentionFp8, DelayedScalingRecordsEachFactorInItsPlace) {
  Factors f;
  const Fp8AttentionState state(DelayedScaling{.amax_history_len = 4});
  attention_fp8(f.call(), state).backward(f.dy);
  const auto amax = [](const at::Tensor& x) { return x.abs().max().item<float>(); };
  const auto recorded = [](const DelayedScalingState& scales, int64_t i) {
    return scales.amax_history[0][i].item<float>();
  };
  EXPECT_EQ(recorded(state.scores->forward, 0), amax(f.q));
  EXPECT_EQ(recorded(state.scores->forward, 1), amax(f.k));
  EXPECT_LE(recorded(state.context->forward, 0), 1) << "probabilities";
  EXPECT_EQ(recorded(state.context->forward, 1), amax(f.v));
  EXPECT_EQ(recorded(state.context->backward, 0), amax(f.dy));
  EXPECT_GT(recorded(state.scores->backward, 0), 0);
  update_scales({state.scores.get(), state.context.get()});
  EXPECT_EQ(state.scores->forward.scale[0].item<float>(), 448 / amax(f.q));
  const StateDict before = snapshot(state.scores->state_dict());
  const at::NoGradGuard no_grad;
  attention_fp8(f.call(), state);
  EXPECT_TRUE(same_bits(state.scores->forward.amax_history,
                        StateReader(before).at("forward").at("amax_history").to_tensor()));
}

TEST(AttentionFp8, AnEvaluationBeforeTheFirstStepScalesByTheTensors) {
  const Factors f;
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(same_bits(attention_fp8(f.call(), Fp8AttentionState(DelayedScaling{})),
                        attention_fp8(f.call(), Fp8AttentionState(Float8CurrentScaling{}))));
}

TEST(AttentionFp8, StaysInFloat32UnderAutocastAndRoundsOnce) {
  const Factors f(4, at::kBFloat16);
  const at::Tensor want = attention_fp8(f.call(), Fp8AttentionState(Float8CurrentScaling{}));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor got = attention_fp8(f.call(), Fp8AttentionState(Float8CurrentScaling{}));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(got.detach(), want.detach()));
}

TEST(AttentionFp8, DropoutActsOnProbabilities) {
  const Factors f;
  AttentionCall call = f.call();
  call.dropout = 0.5;
  const auto run = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return attention_fp8(call, Fp8AttentionState(Float8CurrentScaling{})).detach();
  };
  EXPECT_TRUE(same_bits(run(1), run(1)));
  EXPECT_FALSE(same_bits(run(1), run(2)));
}

TEST(AttentionFp8, SamplesBothProducts) {
  Factors f;
  const Fp8AttentionState state(Float8CurrentScaling{});
  for (const auto& each : {state.scores, state.context}) each->sample(LayerSampling::kTensorsAndErrors);
  attention_fp8(f.call(), state).backward(f.dy);
  EXPECT_EQ(state.scores->statistics().tensors.at("input").numel, f.q.numel());
  EXPECT_EQ(state.context->statistics().tensors.at("input").numel, 2 * 4 * 7 * 7);
  for (const char* name : {"output", "grad_input", "grad_weight"}) {
    EXPECT_GT(state.context->statistics().products.at(name).relative(), 0.001) << name;
    EXPECT_LT(state.context->statistics().products.at(name).relative(), 0.2) << name;
  }
}

TEST(AttentionFp8, RefusesWhatItCannotCompute) {
  const Factors f;
  const Fp8AttentionState state(DelayedScaling{});
  const auto error = [&](const AttentionCall& call) { return error_of([&] { attention_fp8(call, state); }); };
  EXPECT_THAT(
      error_of([] { Fp8AttentionState(MXFP8BlockScaling{}); }),
      HasSubstr("MXFP8BlockScaling has scales for blocks; choose DelayedScaling or Float8CurrentScaling"));
  AttentionCall call = f.causal();
  call.mask = torch::ones({7, 7}, at::kBool);
  EXPECT_THAT(error(call), HasSubstr("not both"));
  call = f.call();
  call.mask = torch::zeros({7, 7});
  EXPECT_THAT(error(call), HasSubstr("dtype bool"));
  EXPECT_THAT(error({.query = f.q, .key = f.k, .value = f.v.narrow(2, 0, 3)}), HasSubstr("does not fit"));
  EXPECT_THAT(error({.query = f.q[0], .key = f.k, .value = f.v}),
              HasSubstr("[batch, heads, positions, channels]"));
  EXPECT_THAT(error({.query = f.q.to(at::kDouble), .key = f.k, .value = f.v}), HasSubstr("use float32"));
  EXPECT_TRUE(state.scores->forward.amax_history.eq(0).all().item<bool>()) << "nothing was recorded";
}

struct Module : HasAttention {
  at::Tensor forward(const Factors& f) const { return attend(f.causal()); }
};

TEST(Fp8AttentionRule, ComputesInsideRegions) {
  const Factors f;
  Module module;
  const at::Tensor plain = module.forward(f);
  const Fp8AttentionState state(Float8CurrentScaling{.fp8_dpa = true});
  module.set_attention_rule(std::make_shared<Fp8AttentionRule>(state));
  EXPECT_TRUE(same_bits(module.forward(f).detach(), plain.detach()));
  const Fp8Autocast region;
  EXPECT_TRUE(same_bits(module.forward(f).detach(), attention_fp8(f.causal(), state).detach()));
  {
    const Fp8Autocast off({.enabled = false});
    EXPECT_TRUE(same_bits(module.forward(f).detach(), plain.detach()));
  }
  // A region's recipe decides whether attention takes part.
  const Fp8Autocast other({.recipe = Float8CurrentScaling{}});
  EXPECT_TRUE(same_bits(module.forward(f).detach(), plain.detach()));
  const Fp8Autocast e4m3({.recipe = Float8CurrentScaling{.fp8_format = Fp8Format::kE4M3, .fp8_dpa = true}});
  EXPECT_FALSE(same_bits(module.forward(f).detach(), plain.detach()));
}

TEST(Fp8AttentionRule, ACopyHasScalesOfItsOwn) {
  const Factors f;
  Module module;
  module.set_attention_rule(
      std::make_shared<Fp8AttentionRule>(Fp8AttentionState(DelayedScaling{.fp8_dpa = true})));
  const Module copy = module;
  EXPECT_FALSE(copy.identity().is_same(module.identity()));
  const Fp8Autocast region;
  copy.forward(f);
  const auto amax = [](const Module& each) {
    const auto rule = std::dynamic_pointer_cast<const Fp8AttentionRule>(each.attention_rule());
    return rule->state().scores->forward.amax_history[0][0].item<float>();
  };
  EXPECT_EQ(amax(module), 0);
  EXPECT_EQ(amax(copy), f.q.abs().max().item<float>());
}

}  // namespace
}  // namespace mantissa::attention_fp8_test
