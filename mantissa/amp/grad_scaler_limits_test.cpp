// Floor, ceiling and hysteresis of the scale.
#include <cmath>
#include <vector>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"

namespace mantissa::grad_scaler_limits_test {
namespace {

using torch::optim::SGD;

constexpr double kSmallestNormal = 0x1p-126;

TEST(GradScaler, LimitsOutOfRangeAreRefused) {
  for (const double floor : {-1.0, 65537.0, std::nan("")}) {
    expect_error<c10::ValueError>([&] { GradScaler(at::kCPU, {.min_scale = floor}); },
                                  "min_scale must be from 0 to init_scale, 65536");
  }
  for (const double ceiling : {65535.0, 1e39, std::nan("")}) {
    expect_error<c10::ValueError>([&] { GradScaler(at::kCPU, {.max_scale = ceiling}); },
                                  "max_scale must be from init_scale, 65536");
  }
  for (const int64_t steps : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    expect_error<c10::ValueError>([&] { GradScaler(at::kCPU, {.hysteresis_steps = steps}); },
                                  "hysteresis_steps must be at least 1 and fit in int32");
  }
  EXPECT_NO_THROW(GradScaler(at::kCPU, {.hysteresis_steps = std::numeric_limits<int32_t>::max()}));
  for (const double factor : {1.0, static_cast<double>(kInf), std::nan("")}) {
    expect_error<c10::ValueError>([&] { GradScaler(at::kCPU, {.growth_factor = factor}); },
                                  "growth factor must be > 1.0");
  }
  for (const double factor : {1.0, -0.5, static_cast<double>(-kInf), std::nan("")}) {
    expect_error<c10::ValueError>([&] { GradScaler(at::kCPU, {.backoff_factor = factor}); },
                                  "backoff factor must be < 1.0");
  }
  expect_error<c10::ValueError>([] { GradScaler(at::kCPU, {.warn_after_skips = -1}); }, "0 never warns");
  EXPECT_NO_THROW(GradScaler(at::kCPU, {.min_scale = 65536.0, .max_scale = 65536.0}));
}

TEST(GradScaler, GS38_TheDefaultFloorIsTheSmallestNormalFloat) {
  auto scaler = used_scaler({.init_scale = 0x1p-125});
  const auto p = with_grad({1.f});
  SGD optimizer({p}, 0.0);
  for (const double scale : {kSmallestNormal, kSmallestNormal, kSmallestNormal}) {
    iterate(scaler, optimizer, kInf);
    EXPECT_EQ(scaler.get_scale(), scale);
  }
  EXPECT_TRUE(iterate(scaler, optimizer, 0x1p-126f));
  EXPECT_EQ(p.grad().item<float>(), 1.f);  // its reciprocal is finite
  EXPECT_EQ(p.item<float>(), 1.f);
}

TEST(GradScaler, GS37_FloorAndCeilingHoldHoweverTheScaleIsSet) {
  auto scaler = used_scaler({.init_scale = 8.0, .growth_interval = 1, .min_scale = 3.0, .max_scale = 20.0});
  SGD optimizer({with_grad({1.f})}, 0.0);
  const float grads[] = {1, 1, 1, kInf, kInf, kInf, kInf, 1};
  const double scales[] = {16, 20, 20, 10, 5, 3, 3, 6};
  for (int i = 0; i < 8; ++i) {
    iterate(scaler, optimizer, grads[i]);
    EXPECT_EQ(scaler.get_scale(), scales[i]) << i;
  }
  scaler.update(1.0);
  EXPECT_EQ(scaler.get_scale(), 3.0);
  expect_error<c10::ValueError>([&] { scaler.update(-1.0); }, "new_scale must be at least 0");
  EXPECT_EQ(scaler.get_scale(), 3.0);
  scaler.update(torch::full({}, kInf));
  EXPECT_EQ(scaler.get_scale(), 20.0);
  auto state = scaler.state_dict();
  state["scale"] = 100.0;
  scaler.load_state_dict(state);
  EXPECT_EQ(scaler.get_scale(), 20.0);
  state["scale"] = 0.0;
  GradScaler lazy(at::kCPU), floorless(at::kCPU, {.min_scale = 0.0});
  expect_error<c10::ValueError>([&] { lazy.load_state_dict(state); }, "continue without its state");
  EXPECT_EQ(lazy.get_scale(), 65536.0);
  floorless.load_state_dict(state);  // a scale of 0, as torch's scaler has it after an underflow
  EXPECT_EQ(floorless.get_scale(), 0.0);
}

struct Row {
  float gradient;
  double scale;
  int64_t growth_tracker, hysteresis_tracker;
};

TEST(GradScaler, GS35_HysteresisToleratesOverflowsUntilGrowthRefillsIt) {
  auto scaler = used_scaler({.init_scale = 64.0, .growth_interval = 2, .hysteresis_steps = 3});
  const auto p = with_grad({1.f});
  SGD optimizer({p}, 0.0);
  const std::vector<Row> rows = {{kInf, 64, 0, 2}, {1, 64, 1, 2},    {kNan, 64, 0, 1}, {kInf, 32, 0, 0},
                                 {1, 32, 1, 0},    {kInf, 16, 0, 0}, {1, 16, 1, 0},    {1, 32, 0, 3},
                                 {kInf, 32, 0, 2}, {1, 32, 1, 2},    {1, 64, 0, 3},    {kInf, 64, 0, 2},
                                 {kInf, 64, 0, 1}, {kInf, 32, 0, 0}, {kInf, 16, 0, 0}};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(iterate(scaler, optimizer, rows[i].gradient), std::isfinite(rows[i].gradient)) << i;
    EXPECT_EQ(scaler.get_scale(), rows[i].scale) << i;
    EXPECT_EQ(scaler.get_growth_tracker(), rows[i].growth_tracker) << i;
    EXPECT_EQ(scaler.state_dict().at("_hysteresis_tracker").toLong(), rows[i].hysteresis_tracker) << i;
  }
}

TEST(GradScaler, AHysteresisOfOneIsTorchs) {
  for (const int64_t steps : {1, 2}) {
    auto scaler = used_scaler({.init_scale = 64.0, .hysteresis_steps = steps});
    SGD optimizer({with_grad({1.f})}, 0.0);
    iterate(scaler, optimizer, kInf);
    EXPECT_EQ(scaler.get_scale(), steps == 1 ? 32.0 : 64.0);
    EXPECT_EQ(scaler.state_dict().size(), steps == 1 ? 5u : 6u);
  }
}

TEST(GradScaler, GS53_ResumingKeepsTheHysteresis) {
  const GradScalerOptions options{.init_scale = 64.0, .growth_interval = 2, .hysteresis_steps = 2};
  const std::vector<float> grads = {kInf, 1, kInf, 1, 1, kInf, kInf, 1, 1, 1};
  SGD optimizer({with_grad({1.f})}, 0.0);
  for (const bool initialized : {false, true}) {
    for (size_t stop = 0; stop <= grads.size(); ++stop) {
      auto whole = used_scaler(options), first = used_scaler(options);
      for (size_t i = 0; i < stop; ++i) {
        iterate(whole, optimizer, grads[i]);
        iterate(first, optimizer, grads[i]);
      }
      GradScaler second(at::kCPU, options);
      if (initialized) second.scale(torch::zeros({}));
      second.load_state_dict(first.state_dict());
      EXPECT_EQ(second.state_dict().at("_hysteresis_tracker").toLong(),
                first.state_dict().at("_hysteresis_tracker").toLong());
      for (size_t i = stop; i < grads.size(); ++i) {
        iterate(second, optimizer, grads[i]);
        iterate(whole, optimizer, grads[i]);
        EXPECT_EQ(second.get_scale(), whole.get_scale()) << stop << " " << i;
      }
    }
  }
}

TEST(GradScaler, GS49_StatesWithAndWithoutHysteresisAreReadByBoth) {
  auto plain = used_scaler({.init_scale = 8.0});
  auto hysteresis = used_scaler({.init_scale = 64.0, .hysteresis_steps = 2});
  SGD optimizer({with_grad({1.f})}, 0.0);
  iterate(hysteresis, optimizer, kInf);
  auto state = hysteresis.state_dict();
  plain.load_state_dict(state);
  EXPECT_EQ(plain.get_scale(), 64.0);
  EXPECT_EQ(plain.state_dict().size(), 5u);
  hysteresis.load_state_dict(plain.state_dict());
  EXPECT_EQ(hysteresis.state_dict().at("_hysteresis_tracker").toLong(), 2);  // full
  state["_hysteresis_tracker"] = 7;  // from a scaler that tolerates more; clamped
  hysteresis.load_state_dict(state);
  EXPECT_EQ(hysteresis.state_dict().at("_hysteresis_tracker").toLong(), 2);
  state["_hysteresis_tracker"] = -1;
  expect_error<c10::ValueError>([&] { hysteresis.load_state_dict(state); }, "must be an integer from 0");
  plain.load_state_dict(state);  // plain has no such key and ignores it
}

}  // namespace
}  // namespace mantissa::grad_scaler_limits_test
