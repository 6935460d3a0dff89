// What a state gives back to the layers of an FP8 mode, and how their steps end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/precision/fp8.h"
#include "mantissa/weights/marked_weight.h"

namespace mantissa::fp8_layers_state_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kSteps = 3;  // of a history

/// Three layers without a bias, of which all compute in FP8 unless the options say otherwise.
struct Layers {
  explicit Layers(Fp8LayerOptions options = {.recipe = DelayedScaling{.amax_history_len = kSteps},
                                             .first_and_last = true})
      : layers("test", std::move(options)) {
    layers.convert(*net);
  }
  at::Tensor weight(int number) const { return net->parameters()[number]; }
  Fp8LinearState& state(int number) const { return *fp8_state_of(weight(number)); }
  at::Tensor scale(int number) const { return state(number).forward.scale; }
  /// Records a magnitude for each tensor of each layer, as a pass does.
  void record(float amax) {
    for (int i = 0; i < 3; ++i) {
      state(i).forward.amax_history[0].fill_(amax);
      state(i).backward.amax_history[0].fill_(amax);
    }
  }
  /// Ends a step of an optimizer that steps all layers.
  void step(float amax) {
    record(amax);
    layers.end_step(net->parameters(), /*skipped=*/false);
  }

  torch::nn::Sequential net{torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)),
                            torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)),
                            torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false))};
  Fp8Layers layers;
};

bool is_new(const Fp8LinearState& state) {
  return at::equal(state.forward.scale, at::ones({3})) &&
         at::equal(state.forward.amax_history, at::zeros({kSteps, 3})) &&
         at::equal(state.backward.scale, at::ones({2})) &&
         at::equal(state.backward.amax_history, at::zeros({kSteps, 2}));
}

TEST(Fp8LayersState, ALoopWithoutSetupOptimizerEndsEachLayersStepOnce) {
  Layers run;
  run.record(2);
  run.layers.end_step({run.weight(0)}, /*skipped=*/false);
  const at::Tensor history = run.state(0).forward.amax_history.clone();
  EXPECT_FALSE(is_new(run.state(0)));
  run.record(4);
  run.layers.end_step({run.weight(1)}, /*skipped=*/false);
  EXPECT_TRUE(at::equal(run.state(0).forward.amax_history.slice(0, 1), history.slice(0, 1)))
      << "the first optimizer steps this layer";
}

TEST(Fp8LayersState, LayersThatTheStateLacksStartAnew) {
  Layers run;
  run.step(2);
  StateDict saved = snapshot(run.layers.state_dict());
  saved["fp8_state"].get_if<StateDict>()->at("layers").get_if<StateDict>()->erase("1");
  run.step(7);
  EXPECT_THAT(run.layers.load_state_dict(StateReader(saved)),
              ElementsAre("it has no FP8 state of 1, which start anew"));
  EXPECT_TRUE(is_new(run.state(1)));
  EXPECT_FALSE(is_new(run.state(0)) || is_new(run.state(2)));
}

TEST(Fp8LayersState, LayersOfAnotherRecipesStateStartAnew) {
  Layers run, e4m3({.recipe = DelayedScaling{.fp8_format = Fp8Format::kE4M3, .amax_history_len = kSteps},
                    .first_and_last = true});
  run.step(2), e4m3.step(2);
  const StateDict saved = run.layers.state_dict();
  EXPECT_THAT(e4m3.layers.load_state_dict(StateReader(saved)),
              ElementsAre(HasSubstr("that of DelayedScaling in HYBRID and is dropped")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_new(e4m3.state(i))) << i;
}

TEST(Fp8LayersState, AStateWithoutSeedsGivesEachLayerItsFirstSeed) {
  torch::manual_seed(5);
  Layers run({.recipe = NVFP4BlockScaling(), .first_and_last = true});
  const uint64_t seeds[] = {run.state(0).seed(), run.state(1).seed(), run.state(2).seed()};
  torch::manual_seed(6);
  const Layers other({.recipe = NVFP4BlockScaling(), .first_and_last = true});
  const StateDict of_other = snapshot(other.layers.state_dict());
  EXPECT_THAT(run.layers.load_state_dict(StateReader(of_other)), IsEmpty());
  EXPECT_NE(run.state(0).seed(), seeds[0]);
  const StateDict none;
  EXPECT_THAT(run.layers.load_state_dict(StateReader(none)), IsEmpty());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.state(i).seed(), seeds[i]) << i;
}

TEST(Fp8LayersState, AUsersLayerStartsAsItCameToTheMode) {
  torch::nn::Linear layer(4, 4);
  const auto state = std::make_shared<Fp8LinearState>(DelayedScaling{.amax_history_len = kSteps});
  state->forward.scale.fill_(8);
  mark_weight(layer->weight, std::make_shared<Fp8TrainingRule>(state));
  Fp8Layers layers("test", {.recipe = DelayedScaling{.amax_history_len = kSteps}});
  layers.convert(*torch::nn::Sequential(layer));
  state->forward.scale.fill_(16);
  const StateDict none;
  EXPECT_THAT(layers.load_state_dict(StateReader(none)),
              ElementsAre("it has no FP8 scales, so these start anew"));
  EXPECT_TRUE(at::equal(state->forward.scale, at::full({3}, 8.F)));
}

TEST(Fp8LayersState, AStateWhoseLaterLayerDoesNotFitChangesNoEarlierOne) {
  Layers run;
  run.step(2);
  StateDict bad = snapshot(run.layers.state_dict());
  auto& saved = *bad["fp8_state"].get_if<StateDict>()->at("layers").get_if<StateDict>();
  saved["2"].get_if<StateDict>()->at("forward").get_if<StateDict>()->at("scale") = at::ones({7});
  run.step(7);
  const at::Tensor before = run.scale(0).clone();
  const std::string error = "fp8_state.layers.2.forward.scale";
  EXPECT_THAT(error_of([&] { run.layers.check_state_dict(StateReader(bad)); }), HasSubstr(error));
  EXPECT_THAT(error_of([&] { run.layers.load_state_dict(StateReader(bad)); }), HasSubstr(error));
  EXPECT_TRUE(at::equal(run.scale(0), before));
  const StateDict& first = *saved["0"].get_if<StateDict>()->at("forward").get_if<StateDict>();
  EXPECT_FALSE(at::equal(*first.at("scale").get_if<at::Tensor>(), before)) << "so that loading it would show";
}

TEST(Fp8LayersState, AnObjectWithoutLayersLoadsAnyState) {
  Fp8Layers none("test", {});
  const Layers run;
  const StateDict saved = run.layers.state_dict(), empty;
  EXPECT_THAT(none.load_state_dict(StateReader(saved)), IsEmpty());
  EXPECT_THAT(none.load_state_dict(StateReader(empty)), IsEmpty());
  EXPECT_TRUE(none.state_dict().empty());
}

}  // namespace
}  // namespace mantissa::fp8_layers_state_test
