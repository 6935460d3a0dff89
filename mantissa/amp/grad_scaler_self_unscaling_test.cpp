#include <stdexcept>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/step_scaling.h"

namespace mantissa::grad_scaler_self_unscaling_test {
namespace {

TEST(GradScaler, GS42_GS43_GS45_SelfUnscalingOptimizersGetScaleAndFlag) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f, -4.f}), plain = with_grad({2.f, -1.f});
  KernelAdamW fused({p}), reference({plain});
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_EQ(fused.seen_scale.item<float>(), 4.f);
  EXPECT_EQ(fused.seen_found_inf.item<float>(), 0.f);
  EXPECT_FALSE(fused.grad_scale.defined());
  EXPECT_FALSE(fused.found_inf.defined());
  EXPECT_TRUE(at::equal(p.grad(), torch::tensor({2.f, -1.f})));
  reference.found_inf = torch::zeros({});
  reference.step(nullptr);
  EXPECT_TRUE(at::equal(p, plain));
  expect_error([&] { scaler.unscale_(fused); }, "being called after step()");
  expect_error([&] { scaler.step(fused); }, "step() has already been called");
  scaler.update();

  p.mutable_grad() = torch::tensor({kInf, 4.f});
  const auto before = p.detach().clone(), moment = fused.moments[0].clone();
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_EQ(scaler.found_inf(fused).item<float>(), 1.f);
  EXPECT_EQ(fused.seen_found_inf.item<float>(), 1.f);
  EXPECT_TRUE(at::equal(p, before));
  EXPECT_TRUE(at::equal(fused.moments[0], moment));
  EXPECT_EQ(fused.steps[0].item<float>(), 1.f);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST(GradScaler, GS43_TheCallersScaleStaysInForce) {
  auto scaler = used_scaler({.init_scale = 4.0});
  KernelAdamW fused({with_grad({8.f})});
  fused.grad_scale = torch::full({}, 3.f);
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale.item<float>(), 12.f);
}

TEST(GradScaler, GS44_AfterUnscaleTheOptimizerGetsNoScale) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f});
  KernelAdamW fused({p});
  scaler.unscale_(fused);
  EXPECT_EQ(p.grad().item<float>(), 2.f);
  scaler.step(fused);
  EXPECT_FALSE(fused.seen_scale.defined());
  scaler.update();
  set_grad(p, kInf);
  scaler.unscale_(fused);
  fused.grad_scale = torch::full({}, 3.f);
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale.item<float>(), 3.f);
  EXPECT_EQ(fused.seen_found_inf.item<float>(), 1.f);
}

TEST(GradScaler, GS46_SelfUnscalingOptimizersMayHaveFp16Gradients) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f}, at::kHalf);
  KernelAdamW fused({p});
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_LT(p.item<float>(), 1.f);
}

TEST(GradScaler, GS47_SelfUnscalingWithoutGradients) {
  auto scaler = used_scaler();
  KernelAdamW fused({torch::ones({1}).requires_grad_()});
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_EQ(fused.seen_found_inf.item<float>(), 0.f);
  expect_error([&] { scaler.update(); }, "No inf checks were recorded prior to update");
}

TEST(GradScaler, GS47_GradientsThatComeAfterUnscaleAreNotStepped) {
  auto scaler = used_scaler();
  const auto p = torch::ones({1}).requires_grad_();
  KernelAdamW fused({p});
  scaler.unscale_(fused);
  set_grad(p, 65536.f);
  expect_error([&] { scaler.step(fused); }, "No inf checks were recorded for this optimizer");
  EXPECT_EQ(p.item<float>(), 1.f);
}

TEST(GradScaler, AThrowingOptimizerKeepsNoScaleOfThisStep) {
  auto scaler = used_scaler({.init_scale = 4.0});
  KernelAdamW fused({with_grad({8.f})});
  fused.fails = true;
  EXPECT_THROW(scaler.step(fused), std::runtime_error);
  EXPECT_FALSE(fused.grad_scale.defined());
  EXPECT_FALSE(fused.found_inf.defined());
  fused.fails = false;
  EXPECT_TRUE(scaler.step(fused));  // not counted as stepped
  EXPECT_EQ(fused.seen_scale.item<float>(), 4.f);
}

TEST(GradScaler, GS26_Fp16SparseGradientsAreCoalescedBeforeTheCheck) {
  auto scaler = used_scaler({.init_scale = 2.0});
  const auto half = torch::ones({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = sparse({60000.f, 60000.f}, at::kHalf);
  KernelAdamW fused({half});
  scaler.step(fused);
  EXPECT_TRUE(half.grad().is_coalesced());
  EXPECT_EQ(fused.seen_found_inf.item<float>(), 1.f);
}

TEST(LastStep, OfASelfUnscalingOptimizerIsWhatItsFlagSaid) {
  auto scaler = used_scaler();
  const auto p = with_grad({kInf});
  KernelSgd fused({p}, 0.5);
  scaler.step(fused);
  EXPECT_TRUE(scaler.last_step(fused).skipped());
  scaler.update();
  set_grad(p, 1.f);
  scaler.step(fused);
  EXPECT_FALSE(scaler.last_step(fused).skipped());
}

}  // namespace
}  // namespace mantissa::grad_scaler_self_unscaling_test
