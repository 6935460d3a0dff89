// Tests what update() makes of the scale: growth, backoff, their bounds, and a new scale.
#include <cmath>
#include <string>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"

namespace mantissa::grad_scaler_update_test {
namespace {

using torch::optim::SGD;

TEST(GradScalerUpdate, GS32_UpdateWithoutChecks) {
  auto scaler = used_scaler();
  SGD optimizer({with_grad({1.f})}, 1.0);
  expect_error([&] { scaler.update(); }, "No inf checks were recorded prior to update");
  scaler.step(optimizer);
  scaler.update();
  expect_error([&] { scaler.update(); }, "No inf checks were recorded prior to update");
}

TEST(GradScalerUpdate, GS33_GS34_UpdateWithANewScale) {
  auto scaler = used_scaler({.init_scale = 2.0});
  SGD optimizer({with_grad({1.f})}, 0.0);
  iterate(scaler, optimizer, 1);
  scaler.step(optimizer);
  scaler.update(4.0);
  EXPECT_EQ(scaler.get_scale(), 4.0);
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
  EXPECT_NO_THROW(scaler.step(optimizer));  // stages were cleared
  scaler.update(0.0);
  EXPECT_EQ(scaler.get_scale(), 0x1p-126);  // accepted, as in torch, and brought up to the floor
  const auto value = torch::full({1}, 16.0, at::kDouble);
  scaler.update(value);
  value.fill_(3);
  EXPECT_EQ(scaler.get_scale(), 16.0);
  scaler.unscale_(optimizer);
  scaler.update(torch::full({}, 8, at::kInt));
  EXPECT_EQ(scaler.get_scale(), 8.0);
  EXPECT_NO_THROW(scaler.unscale_(optimizer));  // cleared by a tensor, too
  const std::string reason = "new_scale should be a 1-element tensor on cpu with requires_grad=False";
  expect_error<c10::ValueError>([&] { scaler.update(torch::ones({2})); },
                                reason + "; got CPUFloatType of shape [2]; or pass a number");
  expect_error<c10::ValueError>([&] { scaler.update(torch::ones({}).requires_grad_()); }, reason);
  expect_error<c10::ValueError>([&] { scaler.update(torch::ones({}, at::kMeta)); }, reason);
  expect_error<c10::ValueError>([&] { scaler.update(at::Tensor()); }, reason);
  for (const double bad : {1e39, static_cast<double>(kInf), std::nan("")}) {
    expect_error<c10::ValueError>([&] { scaler.update(bad); }, "must be at least 0 and finite in float32");
  }
  EXPECT_EQ(scaler.get_scale(), 8.0);
}

TEST(GradScalerUpdate, GS35_GrowsExactlyAtTheInterval) {
  auto scaler = used_scaler({.init_scale = 8.0, .growth_interval = 3});
  SGD optimizer({with_grad({1.f})}, 0.0);
  const float grads[] = {1, 1, 1, 1, 1, kInf, 1, 1, 1};
  const double scales[] = {8, 8, 16, 16, 16, 8, 8, 8, 16};
  const int64_t trackers[] = {1, 2, 0, 1, 2, 0, 1, 2, 0};
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(iterate(scaler, optimizer, grads[i]), std::isfinite(grads[i])) << i;
    EXPECT_EQ(scaler.get_scale(), scales[i]) << i;
    EXPECT_EQ(scaler.get_growth_tracker(), trackers[i]) << i;
  }
}

TEST(GradScalerUpdate, PE17_GrowsFrom256To2048InTwelveSteps) {
  auto scaler = used_scaler({.init_scale = 256.0, .growth_interval = 4});
  SGD optimizer({with_grad({1.f})}, 0.0);
  for (int i = 0; i < 12; ++i) iterate(scaler, optimizer, 1);
  EXPECT_EQ(scaler.get_scale(), 2048.0);
  EXPECT_EQ(scaler.get_growth_tracker(), 0);
}

TEST(GradScalerUpdate, GS36_AnyNonzeroFlagIsBad) {
  for (const float flag : {2.f, kNan, -1.f}) {
    auto scaler = used_scaler({.init_scale = 8.0});
    const auto p = with_grad({8.f});
    SGD optimizer({p}, 1.0);
    scaler.unscale_(optimizer);
    scaler.found_inf(optimizer).fill_(flag);
    EXPECT_FALSE(scaler.step(optimizer));
    EXPECT_EQ(p.item<float>(), 1.f);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 4.0);
  }
}

TEST(GradScalerUpdate, GS37_GrowthPastFloat32KeepsTheScale) {
  auto scaler = used_scaler({.init_scale = 0x1p127, .growth_interval = 1});
  SGD optimizer({with_grad({1.f})}, 0.0);
  iterate(scaler, optimizer, 1);
  EXPECT_EQ(scaler.get_scale(), 0x1p127);
  EXPECT_EQ(scaler.get_growth_tracker(), 0);
}

TEST(GradScalerUpdate, GS38_WithoutAFloorBackoffReachesZeroAsInTorch) {
  auto scaler = used_scaler({.init_scale = 0x1p-149, .min_scale = 0.0});
  const auto p = with_grad({1.f});
  SGD optimizer({p}, 1.0);
  iterate(scaler, optimizer, kInf);
  EXPECT_EQ(scaler.get_scale(), 0.0);
  EXPECT_TRUE(iterate(scaler, optimizer, 1));
  EXPECT_EQ(p.item<float>(), -kInf);
}

TEST(GradScalerUpdate, GS39_AnIntervalBelowTheTrackerIsMissedUntilTheNextReset) {
  auto scaler = used_scaler({.init_scale = 8.0, .growth_interval = 10});
  SGD optimizer({with_grad({1.f})}, 0.0);
  for (int i = 0; i < 3; ++i) iterate(scaler, optimizer, 1);
  scaler.set_growth_interval(3);
  for (int i = 0; i < 9; ++i) iterate(scaler, optimizer, 1);
  EXPECT_EQ(scaler.get_scale(), 8.0);
  EXPECT_EQ(scaler.get_growth_tracker(), 12);
  iterate(scaler, optimizer, kInf);
  for (int i = 0; i < 3; ++i) iterate(scaler, optimizer, 1);
  EXPECT_EQ(scaler.get_scale(), 8.0);  // down to 4 and back
}

}  // namespace
}  // namespace mantissa::grad_scaler_update_test
