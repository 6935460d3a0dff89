// Clipping with a scaler, and fp16 gradients.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/device.h"

namespace mantissa::grad_scaler_clip_test {
namespace {

using torch::optim::SGD;

TEST(GradScaler, CL06_ClippingUnscalesFirst) {
  for (const bool unscaled_before : {false, true}) {
    auto scaler = used_scaler({.init_scale = 4.0});
    const auto a = with_grad({12.f, 16.f}), plain = with_grad({3.f, 4.f});
    SGD optimizer({a}, 1.0);
    if (unscaled_before) scaler.unscale_(optimizer);
    EXPECT_EQ(scaler.clip_grad_norm_(optimizer, 2.5).item<float>(), 5.f);
    clip_grad_norm_(plain, 2.5);
    EXPECT_TRUE(at::equal(a.grad(), plain.grad()));
    scaler.clip_grad_value_(optimizer, 1.75);  // and a second time does not unscale again
    EXPECT_FLOAT_EQ(a.grad()[0].item<float>(), 1.5f);
    EXPECT_EQ(a.grad()[1].item<float>(), 1.75f);
    EXPECT_TRUE(scaler.step(optimizer));
    expect_error([&] { scaler.clip_grad_norm_(optimizer, 1.0); }, "being called after step()");
    scaler.update();
    set_grad(a, 8.f);
    scaler.clip_grad_value_(optimizer, 1.0);
    EXPECT_EQ(a.grad()[0].item<float>(), 1.f);
  }
}

TEST(GradScaler, CL06_ClippingWithADisabledScalerJustClips) {
  GradScaler scaler(at::kCPU, {.enabled = false});
  const auto p = with_grad({3.f, 4.f});
  SGD optimizer({p}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(optimizer, 2.5).item<float>(), 5.f);
  scaler.clip_grad_value_(optimizer, 1.0);
  EXPECT_EQ(p.grad()[1].item<float>(), 1.f);
}

TEST(GradScaler, ClippingRefusesWrongLimitsBeforeItUnscales) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f});
  SGD optimizer({p}, 1.0);
  EXPECT_THROW(scaler.clip_grad_norm_(optimizer, -1.0), c10::ValueError);
  EXPECT_THROW(scaler.clip_grad_norm_(optimizer, 1.0, std::nan("")), c10::ValueError);
  EXPECT_THROW(scaler.clip_grad_value_(optimizer, std::nan("")), c10::ValueError);
  EXPECT_EQ(p.grad().item<float>(), 8.f);
  EXPECT_NO_THROW(scaler.unscale_(optimizer));
  GradScaler fresh(at::kCPU);
  expect_error([&] { fresh.clip_grad_norm_(optimizer, 1.0); },
               "GradScaler::clip_grad: attempted clip_grad before the scale exists");
}

TEST(GradScaler, CL09_AClippedOverflowIsStillSkipped) {
  for (const float bad : {kInf, kNan}) {
    auto scaler = used_scaler({.init_scale = 4.0});
    const auto p = with_grad({bad, 8.f});
    SGD optimizer({p}, 1.0);
    EXPECT_FALSE(std::isfinite(scaler.clip_grad_norm_(optimizer, 1.0).item<float>()));
    scaler.clip_grad_value_(optimizer, 1.0);
    EXPECT_FALSE(scaler.step(optimizer));
    EXPECT_TRUE(at::equal(p, torch::ones({2})));
  }
}

TEST(GradScaler, GS16_Fp16GradientsAreUnscaledInPlaceWhereThatIsAllowed) {
  auto scaler = used_scaler({.init_scale = 1024.0, .allow_fp16_gradients = true});
  const auto p = with_grad({1024.f, 0x1p-14f}, at::kHalf), full = with_grad({2048.f});
  SGD optimizer({p, full}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(optimizer, 100.0).item<float>(), std::sqrt(5.f));
  EXPECT_EQ(p.grad()[0].item<float>(), 1.f);
  EXPECT_EQ(p.grad()[1].item<float>(), 0x1p-24f);  // the smallest fp16 value
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  p.mutable_grad() = torch::tensor({kInf, 1.f}).to(at::kHalf);
  EXPECT_FALSE(scaler.step(optimizer));
}

// 2^-30 is far below fp16; the scaled gradient, 2^-14, is not.
TEST(GradScaler, GS46_AStepThatDividesKeepsWhatFp16Loses) {
  const float scaled = 0x1p-14f;
  const auto folded = with_grad({scaled}, at::kHalf), in_place = with_grad({scaled}, at::kHalf);
  KernelSgd a({folded}, 0x1p29), b({in_place}, 0x1p29);
  auto scaler = used_scaler({.allow_fp16_gradients = true});
  scaler.step(a);
  EXPECT_EQ(folded.item<float>(), 0.5f);  // 1 - 2^29 * 2^-30
  scaler.unscale_(b);
  EXPECT_EQ(in_place.grad().item<float>(), 0.f);
  scaler.step(b);
  EXPECT_EQ(in_place.item<float>(), 1.f);
}

TEST(GradScaler, GS46_ScaledFp16GradientsAreClippedByNorm) {
  for (const double norm_type : {1.0, 2.0, static_cast<double>(kInf)}) {
    auto scaler = used_scaler();
    // In the loss's units these are (3, 4) * 2^-25, which is zero in fp16.
    const auto h = with_grad({3 * 0x1p-9f}, at::kHalf), s = with_grad({4 * 0x1p-9f}, at::kHalf);
    const auto plain = torch::tensor({3 * 0x1p-25, 4 * 0x1p-25}, at::kDouble);
    KernelSgd fused({h, s}, 0x1p24);
    const double norm = plain.norm(norm_type).item<double>();
    EXPECT_EQ(scaler.clip_grad_norm_(fused, 1e-8, norm_type).item<double>(), norm);
    EXPECT_EQ(h.grad().item<float>(), 3 * 0x1p-9f);  // untouched
    expect_error([&] { scaler.unscale_(fused); }, "fp16 gradients, which stay scaled");
    scaler.step(fused);
    const double factor = 1e-8 / (norm + 1e-6);
    EXPECT_NEAR(h.item<double>(), 1 - 0x1p24 * 3 * 0x1p-25 * factor, 1e-3);
    EXPECT_NEAR(65536.0 / fused.seen_scale.item<double>(), factor, 1e-6 * factor);
    scaler.update();
  }
}

// 1/3 + 4/3 in float32 is not 5/3.
TEST(GradScaler, ScaledFp16GradientsAreSummedUpBeforeTheDivision) {
  auto scaler = used_scaler({.init_scale = 3.0});
  const auto h = with_grad({1.f, 4.f}, at::kHalf);
  KernelSgd fused({h}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(fused, 100.0, 1.0).item<float>(), 5.f / 3.f);
}

// (0.25 * 65536)^10 is beyond float32, and the negative power is below it.
TEST(GradScaler, ScaledFp16GradientsAreClippedByAnyOrderOfNorm) {
  for (const double norm_type : {10.0, -10.0, 3.0, 0.0, -static_cast<double>(kInf)}) {
    auto scaler = used_scaler();
    const auto h = with_grad({16384.f, 16384.f}, at::kHalf);
    KernelSgd fused({h}, 1.0);
    const double norm = clip_grad_norm_({with_grad({0.25f, 0.25f})}, 100.0, norm_type).item<double>();
    EXPECT_NEAR(scaler.clip_grad_norm_(fused, 100.0, norm_type).item<double>(), norm, 1e-6) << norm_type;
    EXPECT_TRUE(scaler.step(fused));
    EXPECT_EQ(h[0].item<float>(), 0.75f) << norm_type;
  }
}

TEST(GradScaler, ScaledFloat64GradientsAreSummedUpInFloat64) {
  auto scaler = used_scaler({.init_scale = 1.0});
  const auto half = with_grad({0.f}, at::kHalf);
  const auto wide = parameter(torch::ones({1}, at::kDouble), torch::full({1}, 1 + 1e-12, at::kDouble));
  KernelSgd optimizer({half, wide}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(optimizer, 10.0).item<double>(), 1 + 1e-12);
}

TEST(GradScaler, ClippingRefusesSparseGradientsInALineBeforeItUnscales) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto dense = with_grad({8.f, 8.f}), p = torch::ones({2}).requires_grad_();
  p.mutable_grad() = sparse({4.f, 6.f});
  SGD optimizer({dense, p}, 1.0);
  const std::string cure = "shape [2] has a sparse gradient, which cannot be clipped; build its Embedding";
  for (const auto& clip : std::vector<std::function<void()>>{[&] { scaler.clip_grad_norm_(optimizer, 1.0); },
                                                             [&] { scaler.clip_grad_value_(optimizer, 1.0); },
                                                             [&] {
                                                               clip_grad_norm_({dense, p}, 1.0);
                                                             },
                                                             [&] {
                                                               clip_grad_value_({dense, p}, 1.0);
                                                             }}) {
    expect_error<c10::NotImplementedError>(clip, cure);
  }
  EXPECT_EQ(dense.grad()[0].item<float>(), 8.f);
  EXPECT_TRUE(scaler.step(optimizer));
}

TEST(GradScaler, UnscalingFp16GradientsOfOneThatDividesNamesWhatLosesNothing) {
  auto scaler = used_scaler();
  KernelSgd fused({with_grad({8.f}, at::kHalf)}, 1.0);
  SGD plain({with_grad({8.f}, at::kHalf)}, 1.0);
  expect_error<c10::ValueError>(
      [&] { scaler.unscale_(fused); },
      "leave out unscale_(): step() and scaler.clip_grad_norm_(optimizer, max_norm)");
  expect_error<c10::ValueError>([&] { scaler.unscale_(plain); }, "keep the parameters in float32");
}

TEST(GradScaler, ERR09_LBFGSIsRefusedBeforeItsGradientsAreTouched) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f});
  torch::optim::LBFGS optimizer(std::vector<at::Tensor>{p}, 0.1);
  const std::string cure =
      "LBFGS evaluates its loss several times a step, which a gradient scaler cannot follow; use bf16";
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { scaler.step(optimizer); }, [&] { scaler.unscale_(optimizer); },
           [&] { scaler.clip_grad_norm_(optimizer, 1.0); },
           [&] { scaler.clip_grad_value_(optimizer, 1.0); }}) {
    expect_error<c10::TypeError>(call, cure);
  }
  EXPECT_EQ(p.grad().item<float>(), 8.f);
}

TEST(GradScaler, GS46_AGradientBelowTheLimitKeepsTheScale) {
  auto scaler = used_scaler({.init_scale = 4.0});
  KernelSgd fused({with_grad({8.f}, at::kHalf)}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(fused, 100.0).item<float>(), 2.f);
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale.item<float>(), 4.f);
  scaler.update();
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale.item<float>(), 4.f);  // nothing is left of the last iteration
}

TEST(GradScaler, GS46_ScaledFp16GradientsAreClippedByValue) {
  auto scaler = used_scaler({.init_scale = 1024.0});
  const auto p = with_grad({2048.f, -2048.f, 100.f, 0.f}, at::kHalf), mate = with_grad({2048.f});
  KernelSgd fused({p}, 1.0);
  scaler.clip_grad_value_(fused, 0.5);
  EXPECT_TRUE(at::equal(p.grad(), torch::tensor({512.f, -512.f, 100.f, 0.f}).to(at::kHalf)));
  scaler.step(fused);
  EXPECT_EQ(p[0].item<float>(), 0.5f);
  scaler.update();
  set_grad(p, 65504.f);
  scaler.clip_grad_value_(fused, 65.0);  // 66560 in fp16 is inf: nothing can be above
  EXPECT_EQ(p.grad()[0].item<float>(), 65504.f);
  scaler.clip_grad_value_(fused, kInf);
  EXPECT_EQ(p.grad()[0].item<float>(), 65504.f);
  scaler.clip_grad_value_(fused, 0.0);
  EXPECT_EQ(p.grad()[0].item<float>(), 0.f);
}

TEST(GradScaler, AnInfOfScaledGradientsStaysToBeInspectedAfterClippingByValue) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({kInf, -kInf, 8.f}, at::kHalf), mate = with_grad({16.f});
  KernelSgd fused({p, mate}, 1.0);
  scaler.clip_grad_value_(fused, 1.0);
  EXPECT_TRUE(at::equal(p.grad(), torch::tensor({kInf, -kInf, 8.f}).to(at::kHalf)));
  EXPECT_EQ(mate.grad().item<float>(), 16) << "this step is skipped for all parameters";
}

TEST(GradScaler, CL09_AClampedInfOfScaledGradientsIsStillSkipped) {
  for (const float bad : {kInf, -kInf, kNan}) {
    auto scaler = used_scaler({.init_scale = 4.0});
    const auto p = with_grad({bad, 8.f}, at::kHalf);
    KernelSgd fused({p}, 1.0);
    scaler.clip_grad_value_(fused, 1.0);
    scaler.clip_grad_norm_(fused, 1.0);
    scaler.step(fused);
    EXPECT_EQ(fused.seen_found_inf.item<float>(), 1.f);
    EXPECT_TRUE(at::equal(p, torch::ones({2}, at::kHalf)));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2.0);
  }
}

// Each call uses the units in which the previous one has left the gradients, and the caller's own scale
// counts.
TEST(GradScaler, ScaledClippingComposes) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({24.f, 32.f}, at::kHalf), mixed = with_grad({0.f});
  KernelSgd fused({p, mixed}, 1.0);
  fused.grad_scale = torch::full({}, 2.f);  // (3, 4) in the loss's units
  EXPECT_EQ(scaler.clip_grad_norm_(fused, 2.5).item<float>(), 5.f);
  EXPECT_NEAR(scaler.clip_grad_norm_(fused, 1.25).item<float>(), 2.5f, 1e-5);
  scaler.clip_grad_value_(fused, 0.9);
  EXPECT_NEAR(p.grad()[1].item<float>() / 32.f, 0.9, 1e-3);  // it was 1 after clipping to 1.25
  EXPECT_NEAR(scaler.clip_grad_norm_(fused, kInf).item<float>(), std::hypot(0.75f, 0.9f), 1e-3);
  scaler.step(fused);
  EXPECT_NEAR(p[0].item<float>(), 1 - 0.75, 1e-3);
  EXPECT_NEAR(p[1].item<float>(), 1 - 0.9, 1e-3);
  scaler.update();

  set_grad(p, 8.f);
  scaler.clip_grad_norm_(fused, 0.0);  // the step now divides by inf
  scaler.clip_grad_value_(fused, 0.0);
  const auto before = p.detach().clone();
  scaler.step(fused);
  EXPECT_TRUE(at::equal(p, before));
}

TEST(GradScaler, ClippingOfSelfUnscalingFp32GradientsUnscalesInPlace) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({12.f, 16.f});
  KernelSgd fused({p}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(fused, 100.0).item<float>(), 5.f);
  EXPECT_EQ(p.grad()[0].item<float>(), 3.f);
  scaler.step(fused);
  EXPECT_FALSE(fused.seen_scale.defined());
  EXPECT_EQ(p[0].item<float>(), -2.f);
  KernelSgd empty({torch::ones({1}).requires_grad_()}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(empty, 1.0).item<float>(), 0.f);
}

TEST(GradScaler, Fp16SparseGradientsAreClippedOnceCoalesced) {
  auto scaler = used_scaler({.init_scale = 2.0});
  const auto p = torch::ones({2}, at::kHalf).requires_grad_();
  p.mutable_grad() = sparse({4.f, 6.f}, at::kHalf);
  KernelSgd fused({p}, 1.0);
  EXPECT_EQ(scaler.clip_grad_norm_(fused, 100.0).item<float>(), 5.f);
  scaler.clip_grad_value_(fused, 1.0);
  EXPECT_EQ(p.grad()._values()[0].item<float>(), 2.f);
}

TEST(GradScaler, ScaledClippingOnCudaAndTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  GradScaler scaler(at::kCUDA, {.init_scale = 4.0});
  scaler.scale(torch::zeros({}, at::kCUDA));
  const auto half = at::TensorOptions(at::kCUDA).dtype(at::kHalf);
  const auto on_gpu = parameter(torch::ones({1}, half), torch::full({1}, 12.f, half));
  const auto on_cpu = with_grad({16.f}, at::kHalf);
  KernelSgd fused({on_cpu, on_gpu}, 1.0);
  const auto norm = scaler.clip_grad_norm_(fused, 2.5);
  EXPECT_TRUE(norm.is_cpu());
  EXPECT_EQ(norm.item<float>(), 5.f);
  scaler.clip_grad_value_(fused, 1.0);
  EXPECT_NEAR(on_cpu.grad().item<float>(), 8.f, 1e-2);
  EXPECT_EQ(on_gpu.grad().item<float>(), 8.f);
}

}  // namespace
}  // namespace mantissa::grad_scaler_clip_test
