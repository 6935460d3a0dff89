#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/layer_speed_internal.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::fp8::layer_speed_test {
namespace {

using testing::HasSubstr;

/// A timer that says what it is told: first of FP8, then of the plain layer, and again.
struct Timer {
  std::vector<double> answers;
  size_t calls = 0;

  SecondsOf function() {
    return [this](at::Device, const std::function<void()>& run) {
      run();
      return answers[calls++ % answers.size()];
    };
  }
};

Fp8LayerShape shape(int64_t tokens, int64_t in = 16, int64_t out = 32) {
  return {Float8CurrentScaling(), at::kCPU, at::kBFloat16, at::kFloat, tokens, in, out};
}

TEST(LayerSpeed, ALayerIsMeasuredInBothDtypes) {
  Timer timer = {{2e-3, 3e-3}};
  const Fp8LayerSpeed speed = measure_fp8_layer(shape(5), timer.function());
  EXPECT_EQ(speed.layer, "Float8CurrentScaling.bfloat16-float32.16-to-32.5-tokens");
  EXPECT_EQ(speed.fp8_seconds, 2e-3);
  EXPECT_EQ(speed.plain_seconds, 3e-3);
  EXPECT_TRUE(speed.is_fp8_faster());
  EXPECT_EQ(timer.calls, 2);
}

TEST(LayerSpeed, TheClockMeasuresALayerAndLeavesTheRandomNumbersAlone) {
  torch::manual_seed(5);
  const at::Tensor want = torch::rand({4});
  torch::manual_seed(5);
  const Fp8LayerSpeed speed = measure_fp8_layer(shape(5));
  EXPECT_GT(speed.fp8_seconds, 0);
  EXPECT_GT(speed.plain_seconds, 0);
  EXPECT_TRUE(torch::rand({4}).equal(want));
}

/// Sets MANTISSA_CACHE_DIR to an empty folder.
class LayerSpeedFile : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    if (const char* const value = std::getenv("MANTISSA_CACHE_DIR")) before_ = value;
    setenv("MANTISSA_CACHE_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    before_ ? setenv("MANTISSA_CACHE_DIR", before_->c_str(), 1) : unsetenv("MANTISSA_CACHE_DIR");
    InFolder::TearDown();
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(LayerSpeedFile, EachShapeIsMeasuredOnceAndKept) {
  Timer timer = {{2e-3, 3e-3, 5e-3, 4e-3}};
  LayerSpeeds speeds("GPU A", timer.function());
  EXPECT_TRUE(speeds.of(shape(5)).is_fp8_faster());
  EXPECT_TRUE(speeds.of(shape(8)).is_fp8_faster()) << "of the same power of two";
  EXPECT_EQ(timer.calls, 2);
  EXPECT_FALSE(speeds.of(shape(9)).is_fp8_faster());
  EXPECT_EQ(timer.calls, 4);

  Timer none = {{1}};
  LayerSpeeds again("GPU A", none.function());
  EXPECT_EQ(again.all().size(), 2);
  const Fp8LayerSpeed cached = again.of(shape(16));
  EXPECT_EQ(cached.source, "cached");
  EXPECT_EQ(cached.fp8_seconds, 5e-3);
  EXPECT_EQ(none.calls, 0);

  LayerSpeeds other("GPU B", timer.function());
  EXPECT_TRUE(other.all().empty()) << "another device has a file of its own";
}

/// A layer whose device multiplies FP8 codes itself, which a test has to pretend.
struct NativeLayer {
  ForcedPath path{DevicePath::kNative};
  std::shared_ptr<Fp8LinearState> state = state_of(Float8CurrentScaling());
  at::Tensor weight = torch::randn({32, 16}), x = torch::randn({4, 16});

  NativeLayer() { mark_weight(weight, std::make_shared<Fp8TrainingRule>(state)); }
  bool is_plain() const {
    const Fp8Autocast region;
    return at::linear(x, weight).equal(at::linear(x, weight.detach() + 0));
  }
};

TEST(LayerSpeed, ALayerThatFp8SlowsDownComputesInItsOwnDtype) {
  Timer slow = {{3e-3, 2e-3}}, fast = {{2e-3, 3e-3}};
  {
    const InjectedTimer timer(slow.function());
    const NativeLayer layer;
    EXPECT_TRUE(layer.is_plain());
    EXPECT_FALSE(
        StateReader(layer.state->state_dict()).at("is_faster_in_fp8").at("Float8CurrentScaling").to_bool());
    EXPECT_EQ(fp8_layer_speeds(at::kCPU).size(), 1);
  }
  const InjectedTimer timer(fast.function());
  const NativeLayer layer;
  EXPECT_FALSE(layer.is_plain());
}

TEST(LayerSpeed, TheDecisionIsMadeOnceAndResumed) {
  Timer slow = {{3e-3, 2e-3}};
  const InjectedTimer timer(slow.function());
  NativeLayer layer;
  EXPECT_TRUE(layer.is_plain());
  layer.x = torch::randn({300, 16});
  EXPECT_TRUE(layer.is_plain());
  EXPECT_EQ(slow.calls, 2) << "another number of tokens decides nothing anew";
  NativeLayer resumed;
  resumed.state->load_state_dict(StateReader(layer.state->state_dict()));
  EXPECT_TRUE(resumed.is_plain());
  EXPECT_EQ(slow.calls, 2);
}

TEST(LayerSpeed, EachRecipeOfARegionHasADecision) {
  Timer timer = {{3e-3, 2e-3, 2e-3, 3e-3}};
  const InjectedTimer injected(timer.function());
  const NativeLayer layer;
  const auto is_plain_in = [&](const Fp8Recipe& recipe) {
    const Fp8Autocast region({.recipe = recipe});
    return at::linear(layer.x, layer.weight).equal(at::linear(layer.x, layer.weight.detach() + 0));
  };
  const Float8CurrentScaling other{.fp8_format = Fp8Format::kE4M3};
  EXPECT_TRUE(is_plain_in(other));
  EXPECT_FALSE(is_plain_in(Float8CurrentScaling())) << "the layer's own";
  EXPECT_TRUE(is_plain_in(other));
  EXPECT_EQ(timer.calls, 4);
  {
    const at::NoGradGuard evaluation;
    EXPECT_TRUE(is_plain_in(other)) << "as in training";
  }
  const StateDict state = layer.state->state_dict();
  const StateReader decisions = StateReader(state).at("is_faster_in_fp8");
  EXPECT_TRUE(decisions.at("Float8CurrentScaling").to_bool());
  EXPECT_FALSE(decisions.at("Float8CurrentScaling-E4M3").to_bool());
}

TEST(LayerSpeed, AHistoryThatTheLayerDoesNotHaveIsRefusedAndNotMeasured) {
  Timer slow = {{3e-3, 2e-3}};
  const InjectedTimer timer(slow.function());
  const NativeLayer layer;
  const Fp8Autocast region({.recipe = DelayedScaling()});
  EXPECT_THROW(at::linear(layer.x, layer.weight), c10::ValueError);
  EXPECT_EQ(slow.calls, 0);
}

TEST(LayerSpeed, AForwardPassWhoseGraphFollowsDecides) {
  Timer slow = {{3e-3, 2e-3}};
  const InjectedTimer timer(slow.function());
  const NativeLayer layer;
  const at::NoGradGuard as_in_a_checkpoint;
  {
    const Fp8GraphFollows in_backward;
    EXPECT_TRUE(layer.is_plain());
  }
  EXPECT_FALSE(Fp8GraphFollows::is_set());
  EXPECT_EQ(slow.calls, 2);
}

TEST(LayerSpeed, NothingIsDecidedWhereFp8IsEmulatedRequiredOrOffOrWithoutAGraph) {
  Timer slow = {{3e-3, 2e-3}};
  const InjectedTimer timer(slow.function());
  {
    NativeLayer layer;
    const at::NoGradGuard evaluation;
    EXPECT_FALSE(layer.is_plain());
  }
  {
    NativeLayer layer;
    layer.state->set_native(Fp8Native::kRequired);
    EXPECT_TRUE(layer.state->is_faster_in_fp8(layer.x, at::kFloat, layer.weight));
    layer.state->set_native(Fp8Native::kOff);
    EXPECT_FALSE(layer.is_plain());
  }
  const auto state = state_of(Float8CurrentScaling());
  EXPECT_TRUE(state->is_faster_in_fp8(torch::ones({4, 16}), at::kFloat, torch::ones({32, 16})));
  EXPECT_EQ(slow.calls, 0);
  EXPECT_FALSE(state->state_dict().contains("is_faster_in_fp8"));
}

}  // namespace
}  // namespace mantissa::fp8::layer_speed_test
