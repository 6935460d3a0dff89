#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"

namespace mantissa::grad_scaler_state_test {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;

TEST(GradScaler, GS11_AStateLoadedBeforeTheFirstScaleIsUsedByIt) {
  GradScaler scaler(at::kCPU);
  scaler.load_state_dict({{"scale", 4.0},
                          {"growth_factor", 2.0},
                          {"backoff_factor", 0.5},
                          {"growth_interval", 5},
                          {"_growth_tracker", 3}});
  EXPECT_EQ(scaler.get_scale(), 4.0);
  EXPECT_EQ(scaler.scale(torch::ones({})).item<float>(), 4.f);
  EXPECT_EQ(scaler.get_growth_tracker(), 3);
}

TEST(GradScaler, GS49_StateHasTorchsKeysAndTypes) {
  auto scaler =
      used_scaler({.init_scale = 8.0, .growth_factor = 3.0, .backoff_factor = 0.25, .growth_interval = 7});
  SGD optimizer({with_grad({1.f})}, 0.0);
  iterate(scaler, optimizer, 1);
  const auto state = scaler.state_dict();
  ASSERT_EQ(state.size(), 5u);
  EXPECT_EQ(state.at("scale").toDouble(), 8.0);
  EXPECT_EQ(state.at("growth_factor").toDouble(), 3.0);
  EXPECT_EQ(state.at("backoff_factor").toDouble(), 0.25);
  EXPECT_EQ(state.at("growth_interval").toLong(), 7);
  EXPECT_EQ(state.at("_growth_tracker").toLong(), 1);
  for (const char* key : {"scale", "growth_factor", "backoff_factor"})
    EXPECT_TRUE(state.at(key).isFloatingPoint());
  for (const char* key : {"growth_interval", "_growth_tracker"}) EXPECT_TRUE(state.at(key).isIntegral(false));
}

TEST(GradScaler, GS50_WrongStatesChangeNothing) {
  for (const bool initialized : {false, true}) {
    GradScaler scaler(at::kCPU, {.init_scale = 8.0});
    if (initialized) scaler.scale(torch::zeros({}));
    const auto before = scaler.state_dict();
    const auto expect_unchanged = [&] {
      const auto after = scaler.state_dict();
      for (const auto& [key, value] : before) EXPECT_EQ(after.at(key).toDouble(), value.toDouble()) << key;
    };
    expect_error([&] { scaler.load_state_dict({}); },
                 "possibly because it was saved from a disabled instance");
    const GradScalerState good = {{"scale", 4.0},
                                  {"growth_factor", 3.0},
                                  {"backoff_factor", 0.25},
                                  {"growth_interval", 7},
                                  {"_growth_tracker", 3}};
    for (const auto& [key, value] : good) {
      auto state = good;
      state.erase(key);
      expect_error<c10::ValueError>([&] { scaler.load_state_dict(state); }, "'" + key + "' is missing");
      state[key] = std::nan("");
      expect_error<c10::ValueError>([&] { scaler.load_state_dict(state); }, "'" + key + "' must be finite");
      state[key] = true;
      expect_error<c10::ValueError>([&] { scaler.load_state_dict(state); }, "'" + key + "' must be a number");
      expect_unchanged();
    }
    auto state = good;
    state["growth_tracker"] = 1;
    state.erase("_growth_tracker");
    expect_error<c10::ValueError>([&] { scaler.load_state_dict(state); }, "did you mean 'growth_tracker'?");
    for (const double bad : {0.5, -1.0, 0x1p31, 1e10}) {
      state = good;
      state["_growth_tracker"] = bad;
      expect_error<c10::ValueError>([&] { scaler.load_state_dict(state); }, "must be an integer from 0");
    }
    state = good;
    state["scale"] = 1e39;
    expect_error<c10::ValueError>([&] { scaler.load_state_dict(state); }, "must fit in float32");
    const std::vector<std::pair<std::string, double>> impossible = {
        {"scale", -5.0},           {"scale", 0.0},          {"growth_factor", -3.0},
        {"growth_factor", 1.0},    {"backoff_factor", 7.0}, {"backoff_factor", -1.0},
        {"growth_interval", -4.0}, {"growth_interval", 0.0}};
    for (const auto& [key, value] : impossible) {
      state = good;
      state[key] = value;
      EXPECT_THROW(scaler.load_state_dict(state), c10::ValueError) << key << " " << value;
      expect_unchanged();
    }
    expect_unchanged();
    state = good;
    state["growth_interval"] = 9.0;  // as from a reader that knows only floating-point numbers
    state["hysteresis"] = 1;         // as from a later version
    scaler.load_state_dict(state);
    EXPECT_EQ(scaler.get_growth_interval(), 9);
    EXPECT_EQ(scaler.get_scale(), 4.0);
    EXPECT_EQ(scaler.get_growth_tracker(), 3);
    state["_growth_tracker"] = 0x1p31 - 1;  // the largest there is
    scaler.load_state_dict(state);
    EXPECT_EQ(scaler.get_growth_tracker(), std::numeric_limits<int>::max());
  }
}

TEST(GradScaler, StatesAtTheEndsOfTheRangeLoad) {
  const auto scale_after = [](double scale, const GradScalerOptions& options) {
    auto scaler = used_scaler(options);
    GradScalerState state = scaler.state_dict();
    state.at("scale") = scale;
    scaler.load_state_dict(state);
    return scaler.get_scale();
  };
  const double largest = std::numeric_limits<float>::max();
  EXPECT_EQ(scale_after(largest, {.max_scale = largest}), largest);
  EXPECT_EQ(scale_after(0, {.min_scale = 0}), 0) << "torch's scaler may have gone down to 0";
  EXPECT_EQ(scale_after(0.25, {}), 0.25);
  EXPECT_THROW(scale_after(-1, {.min_scale = 0}), c10::ValueError) << "no scale is negative";
}

TEST(GradScaler, GS51_GS52_LoadingKeepsTheIterationsState) {
  auto scaler = used_scaler({.init_scale = 8.0});
  const auto p = with_grad({8.f});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  auto state = scaler.state_dict();  // allowed in mid-iteration; it holds the scale before update()
  EXPECT_EQ(state.at("scale").toDouble(), 8.0);
  state["scale"] = 2.0;
  scaler.load_state_dict(state);
  EXPECT_EQ(scaler.scale(torch::ones({})).item<float>(), 2.f);
  EXPECT_THROW(scaler.unscale_(optimizer), c10::Error);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(p.item<float>(), 0.f);
}

TEST(GradScaler, ARestoredStageReplacesTheOneBefore) {
  TrackedScaler scaler({.init_scale = 8.0});
  scaler.scale(torch::zeros({}));
  const auto p = with_grad({8.f});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  p.mutable_grad() = torch::full({1}, 8.f);
  scaler.restore_gradient_stage(optimizer, GradientStage::kScaled, {});
  EXPECT_EQ(scaler.gradient_stage(optimizer), GradientStage::kScaled);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(p.item<float>(), 0.f);
}

TEST(GradScaler, GS53_PE18_ResumingEqualsNotStopping) {
  const std::vector<float> grads = {1, 1, kInf, 1, 1, 1, 1, kNan, 1, 1, 1, 1};
  const GradScalerOptions options{.init_scale = 8.0, .growth_interval = 2};
  for (size_t stop = 0; stop <= grads.size(); ++stop) {
    auto whole = used_scaler(options), first = used_scaler(options);
    const auto p = with_grad({1.f}), q = with_grad({1.f});
    SGD straight({p}, 0.1), resumed({q}, 0.1);
    for (size_t i = 0; i < stop; ++i) {
      iterate(whole, straight, grads[i]);
      iterate(first, resumed, grads[i]);
    }
    GradScaler second(at::kCPU);
    second.load_state_dict(first.state_dict());
    for (size_t i = stop; i < grads.size(); ++i) {
      EXPECT_EQ(iterate(second, resumed, grads[i]), iterate(whole, straight, grads[i]));
      EXPECT_EQ(second.get_scale(), whole.get_scale()) << stop << " " << i;
      EXPECT_EQ(second.get_growth_tracker(), whole.get_growth_tracker()) << stop << " " << i;
      EXPECT_TRUE(at::equal(p, q)) << stop << " " << i;
    }
  }
}

TEST(GradScaler, PE19_StatesCrossAsTensors) {
  auto scaler = used_scaler({.init_scale = 8.0, .growth_interval = 7, .hysteresis_steps = 2});
  const auto state = scaler.state_dict();
  const auto tensors = scaler_state_to_tensors(state);
  EXPECT_EQ(tensors.at("scale").scalar_type(), at::kDouble);
  EXPECT_EQ(tensors.at("growth_interval").scalar_type(), at::kLong);
  EXPECT_EQ(tensors.at("_hysteresis_tracker").dim(), 0);
  const auto back = scaler_state_from_tensors(tensors);
  ASSERT_EQ(back.size(), state.size());
  for (const auto& [key, value] : state) {
    EXPECT_EQ(back.at(key).toDouble(), value.toDouble()) << key;
    EXPECT_EQ(back.at(key).isFloatingPoint(), value.isFloatingPoint()) << key;
  }
  EXPECT_TRUE(scaler_state_to_tensors({}).empty());
  EXPECT_EQ(scaler_state_from_tensors({{"scale", torch::full({1}, 4.f)}}).at("scale").toDouble(), 4.0);
  for (const auto& wrong : {at::Tensor(), torch::ones({2}), torch::ones({0}), torch::ones({}, at::kBool),
                            torch::ones({}, at::kComplexFloat)}) {
    expect_error<c10::ValueError>(
        [&] {
          scaler_state_from_tensors({{"scale", wrong}});
        },
        "'scale' must be one real number");
  }
}

}  // namespace
}  // namespace mantissa::grad_scaler_state_test
