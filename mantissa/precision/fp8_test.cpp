#include "mantissa/precision/fp8.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <stdexcept>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/precision/registry.h"

namespace mantissa::fp8_modes_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::string>& names() {
  static const std::vector<std::string> names{"fp8-mixed", "transformer-engine",
                                              "transformer-engine-float16"};
  return names;
}

/// A training whose inner layers compute in FP8.
struct Training {
  explicit Training(const std::string& name, const PrecisionOptions& options = {})
      : mode(make_precision(name, at::kCPU, options)) {
    torch::manual_seed(3);
    net = torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::GELU(), torch::nn::Linear(32, 40),
                                torch::nn::GELU(), torch::nn::Linear(40, 10));
    mode->convert_module(*net);
    optimizer =
        std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    mode->setup_optimizer(*optimizer);
  }
  at::Tensor forward(const at::Tensor& x) {
    const Scope scope = mode->forward_context();
    return net->forward(mode->convert_input(x));
  }
  double micro_batch(int64_t number) {
    const at::Tensor x = (torch::arange(48 * 16, at::kFloat).view({48, 16}) * 0.37 + number).sin();
    const at::Tensor y = (x.sum(1) * 2 + 5).clamp(0, 9).to(at::kLong);
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = torch::cross_entropy_loss(net->forward(mode->convert_input(x)), y);
    }
    mode->backward(loss);
    return loss.item<double>();
  }
  double step(int64_t number) {
    optimizer->zero_grad();
    const double loss = micro_batch(number);
    mode->optimizer_step(*optimizer);
    return loss;
  }
  std::shared_ptr<Fp8LinearState> state() const { return fp8_state_of(net->named_parameters()["2.weight"]); }
  StateDict checkpoint() const {
    StateDict weights;
    for (const auto& entry : net->named_parameters())
      weights.emplace(entry.key(), entry.value().detach() + 0);
    return snapshot({{"weights", std::move(weights)},
                     {"optimizer", optimizer_state(*optimizer)},
                     {"precision", mode->state_dict()}});
  }
  std::vector<std::string> load(const StateDict& saved) {
    const StateReader state(saved);
    const torch::NoGradGuard no_grad;
    for (auto& entry : net->named_parameters())
      entry.value().copy_(state.at("weights").at(entry.key()).to_tensor());
    load_optimizer_state(*optimizer, state.at("optimizer"));
    return mode->load_state_dict(state.at("precision"));
  }

  std::unique_ptr<Precision> mode;
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer;
};

PrecisionOptions history(int64_t steps) { return {.recipe = DelayedScaling{.amax_history_len = steps}}; }

TEST(Fp8Modes, F8_40_WeightsHaveTheDtypeOfTheName) {
  const auto weights = [](const std::string& name) {
    return Training(name).net->parameters()[0].scalar_type();
  };
  EXPECT_EQ(weights("fp8-mixed"), at::kFloat);
  EXPECT_EQ(weights("transformer-engine"), at::kBFloat16);
  EXPECT_EQ(weights("transformer-engine-float16"), at::kHalf);
  EXPECT_FALSE(make_precision("transformer-engine-float16", at::kCPU)->loss_scale().defined()) << "no scaler";
}

TEST(Fp8Modes, F8_41_InputsHaveTheWeightsDtypeAndOutputsFloat32) {
  for (const std::string& name : names()) {
    Training run(name);
    const at::Tensor x = torch::ones({2, 16});
    EXPECT_EQ(run.mode->convert_input(x).scalar_type(),
              name == "fp8-mixed" ? at::kFloat : run.net->parameters()[0].scalar_type());
    const at::Tensor numbers = torch::arange(3);
    EXPECT_TRUE(run.mode->convert_input(numbers).is_same(numbers));
    const at::Tensor y = run.forward(x);
    EXPECT_EQ(y.scalar_type(), name == "transformer-engine-float16" ? at::kHalf : at::kBFloat16);
    EXPECT_EQ(run.mode->convert_output(y).scalar_type(), at::kFloat);
    try {
      const Scope scope = run.mode->forward_context();
      EXPECT_TRUE(current_fp8_autocast().enabled);
      EXPECT_EQ(torch::ones(1).scalar_type(),
                name == "fp8-mixed" ? at::kFloat : run.net->parameters()[0].scalar_type());
      throw std::runtime_error("body");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
    EXPECT_FALSE(current_fp8_autocast().enabled);
  }
}

TEST(Fp8Modes, F8_42_ADisabledRegionComputesAsTheModelBefore) {
  torch::nn::Sequential net(torch::nn::Linear(16, 48));
  const at::Tensor x = torch::randn({8, 16}).to(at::kBFloat16);
  const auto autocast = [&] {
    const Scope scope = make_precision("bf16-mixed", at::kCPU)->forward_context();
    return net->forward(x);
  };
  const at::Tensor before = autocast();
  const auto mode = make_precision("fp8-mixed", at::kCPU, {.fp8_first_and_last = true});
  mode->convert_module(*net);
  const Scope scope = mode->forward_context();
  EXPECT_FALSE(at::equal(net->forward(x), before));
  const Fp8Autocast disabled({.enabled = false});
  EXPECT_TRUE(at::equal(net->forward(x), before));
}

// A hook or a custom function in a manual backward pass computes as it does outside of the forward context.
TEST(Fp8Modes, TheBackwardContextDisablesTheRegion) {
  for (const std::string& name : names()) {
    const auto mode = make_precision(name, at::kCPU);
    const Scope forward = mode->forward_context();
    {
      const Scope backward = mode->backward_context();
      EXPECT_FALSE(current_fp8_autocast().enabled) << name;
    }
    EXPECT_TRUE(current_fp8_autocast().enabled) << name;
  }
}

TEST(Fp8Modes, F8_18_ScalesMoveOncePerOptimizerStep) {
  Training run("fp8-mixed", history(4));
  run.optimizer->zero_grad();
  for (int i = 0; i < 3; ++i) run.micro_batch(i);
  EXPECT_TRUE(at::equal(run.state()->forward.scale, at::ones({3})));
  const at::Tensor amaxes = run.state()->forward.amax_history[0].clone();
  EXPECT_EQ(run.mode->optimizer_step(*run.optimizer).cause(), SkipCause::kNone);
  EXPECT_TRUE(at::equal(run.state()->forward.amax_history[3], amaxes)) << "one step, with all micro-batches";
  EXPECT_TRUE(at::equal(run.state()->forward.amax_history.slice(0, 0, 3), at::zeros({3, 3})));
  EXPECT_EQ(run.state()->forward.scale[1].item<float>(), 448 / amaxes[1].item<float>());
  EXPECT_NE(run.state()->backward.scale[0].item<float>(), 1);
  const StateDict before = run.checkpoint();
  {
    const torch::NoGradGuard no_grad;
    run.forward(torch::ones({2, 16}));
  }
  run.optimizer->zero_grad();
  EXPECT_EQ(run.mode->optimizer_step(*run.optimizer).cause(), SkipCause::kNoGradients);
  EXPECT_EQ(difference(run.checkpoint(), before), "")
      << "neither evaluation nor a step without gradients counts";
}

TEST(Fp8Modes, F8_22_ARankTakesTheLargestAmaxesOfAll) {
  Fp8Mixed mode(at::kCPU, {.recipe = DelayedScaling{.amax_history_len = 2}, .first_and_last = true});
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  mode.convert_module(*net);
  int calls = 0;
  mode.fp8_layers().set_amax_reduction([&](const at::Tensor& amaxes) {
    ++calls;
    EXPECT_EQ(amaxes.sizes(), at::IntArrayRef({2 * 5}));
    amaxes.fill_(14);
  });
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  at::Tensor loss;
  {
    const Scope scope = mode.forward_context();
    loss = net->forward(torch::ones({2, 4})).sum();
  }
  mode.backward(loss);
  mode.optimizer_step(optimizer);
  EXPECT_EQ(calls, 1);
  for (const at::Tensor& weight : {net->parameters()[0], net->parameters()[2]})
    EXPECT_TRUE(at::equal(fp8_state_of(weight)->forward.scale, at::full({3}, 32.F)));
}

TEST(Fp8Modes, ASkippedStepLeavesNoMagnitudesOfItsGradients) {
  Training run("transformer-engine-float16",
               {.loss_scale = "65536", .recipe = DelayedScaling{.amax_history_len = 3}});
  run.optimizer->zero_grad();
  at::Tensor loss = (run.forward(torch::ones({2, 16})).to(at::kFloat) * 1e6).sum();
  run.mode->backward(loss);
  EXPECT_TRUE(run.mode->optimizer_step(*run.optimizer).skipped());
  EXPECT_TRUE(at::equal(run.state()->backward.amax_history, at::zeros({3, 2})));
  EXPECT_NE(run.state()->forward.scale[0].item<float>(), 1) << "the forward pass was valid";
}

/// Two layers, each with an optimizer of its own.
struct TwoOptimizers {
  TwoOptimizers()
      : mode(at::kCPU, {.recipe = DelayedScaling{.amax_history_len = 3}, .first_and_last = true}) {
    mode.convert_module(*net);
    for (torch::optim::SGD* const each : {&first, &second}) mode.setup_optimizer(*each);
  }
  void backward(float x) {
    at::Tensor loss;
    {
      const Scope scope = mode.forward_context();
      loss = net->forward(torch::full({2, 4}, x)).sum();
    }
    mode.backward(loss);
  }
  std::shared_ptr<Fp8LinearState> state(int layer) const { return fp8_state_of(net->parameters()[layer]); }

  Fp8Mixed mode;
  torch::nn::Sequential net{torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)),
                            torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false))};
  torch::optim::SGD first{std::vector<at::Tensor>{net->parameters()[0]}, 0.1},
      second{std::vector<at::Tensor>{net->parameters()[1]}, 0.1};
};

TEST(Fp8Modes, AnOptimizerEndsTheStepOfTheLayersThatItSteps) {
  TwoOptimizers run;
  run.backward(2);
  const at::Tensor amaxes = run.state(1)->forward.amax_history[0].clone();
  run.mode.optimizer_step(run.first);
  EXPECT_EQ(run.state(0)->forward.scale[0].item<float>(), 224);
  EXPECT_TRUE(at::equal(run.state(1)->forward.scale, at::ones({3})));
  EXPECT_TRUE(at::equal(run.state(1)->forward.amax_history[0], amaxes));
  run.mode.optimizer_step(run.second);
  EXPECT_TRUE(at::equal(run.state(1)->forward.amax_history[2], amaxes));
  EXPECT_EQ(run.state(0)->forward.scale[0].item<float>(), 224) << "its step ends once";
}

TEST(Fp8Modes, AFrozenLayerMovesOnWithEachStep) {
  const auto mode = make_precision("fp8-mixed", at::kCPU, history(3));
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  mode->convert_module(*net);
  torch::optim::SGD head(net[2]->parameters(), 0.1);
  mode->setup_optimizer(head);
  at::Tensor loss;
  {
    const Scope scope = mode->forward_context();
    loss = net->forward(torch::ones({2, 4})).sum();
  }
  mode->backward(loss);
  mode->optimizer_step(head);
  EXPECT_NE(fp8_state_of(net->parameters()[2])->forward.scale[0].item<float>(), 1);
}

TEST(Fp8Modes, AnInfiniteAmaxOfAnotherOptimizersPassIsDropped) {
  TwoOptimizers run;
  run.backward(2);
  // As a pass that overflowed and whose step was skipped leaves it; the next pass adds its own magnitudes.
  run.state(1)->backward.amax_history[0].fill_(INFINITY);
  run.mode.optimizer_step(run.second);
  EXPECT_TRUE(at::equal(run.state(1)->backward.amax_history, at::zeros({3, 2})));
  EXPECT_TRUE(at::equal(run.state(1)->backward.scale, at::ones({2})));
  EXPECT_NE(run.state(0)->backward.amax_history[0][0].item<float>(), 0) << "valid amaxes of others stay";
}

TEST(Fp8Modes, ASkippedStepErasesNoAmaxesOfOtherOptimizers) {
  Fp8Layers layers("test", {.recipe = DelayedScaling{.amax_history_len = 3}, .first_and_last = true});
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  layers.convert(*net);
  const at::Tensor first = net->parameters()[0], second = net->parameters()[2];
  layers.add_optimizer({first}), layers.add_optimizer({second});
  for (const at::Tensor& weight : {first, second}) fp8_state_of(weight)->backward.amax_history[0].fill_(7);
  layers.end_step({first}, /*skipped=*/true);
  EXPECT_TRUE(at::equal(fp8_state_of(first)->backward.amax_history, at::zeros({3, 2})));
  EXPECT_TRUE(at::equal(fp8_state_of(second)->backward.amax_history[0], at::full({2}, 7.F)));
}

TEST(Fp8Modes, AReductionThatFailsChangesNothing) {
  Training run("fp8-mixed", history(3));
  run.micro_batch(0);
  const StateDict before = run.checkpoint();
  auto& layers = dynamic_cast<Fp8Mixed&>(*run.mode).fp8_layers();
  layers.set_amax_reduction([](const at::Tensor&) { throw std::runtime_error("a rank is gone"); });
  EXPECT_THROW(layers.end_step(run.net->parameters(), /*skipped=*/true), std::runtime_error);
  EXPECT_EQ(difference(run.checkpoint(), before), "");
}

std::vector<std::pair<std::string, PrecisionOptions>> recipes() {
  const auto options = [](const Fp8Recipe& recipe) {
    return PrecisionOptions{.recipe = recipe, .fp8_first_and_last = true};
  };
  return {{"delayed", options(DelayedScaling{.amax_history_len = 4})},
          {"current", options(Float8CurrentScaling())},
          {"block", options(Float8BlockScaling())},
          {"mxfp8", options(MXFP8BlockScaling())},
          {"nvfp4", options(NVFP4BlockScaling())}};
}

TEST(Fp8Modes, F8_31_ARunThatIsLoadedContinuesBitForBit) {
  for (const std::string& name : names()) {
    for (const auto& [recipe, options] : recipes()) {
      Training straight(name, options), resumed(name, options);
      for (int i = 0; i < 5; ++i) straight.step(i);
      const StateDict saved = straight.checkpoint();
      for (int i = 5; i < 9; ++i) straight.step(i);
      resumed.step(100);  // changes the state, so that all of it must be loaded
      EXPECT_THAT(resumed.load(saved), IsEmpty());
      for (int i = 5; i < 9; ++i) resumed.step(i);
      EXPECT_EQ(difference(straight.checkpoint(), resumed.checkpoint()), "") << name << ' ' << recipe;
    }
  }
}

TEST(Fp8Modes, F8_31_AndInTheMiddleOfAnAccumulationWindow) {
  Training straight("fp8-mixed", history(4)), resumed("fp8-mixed", history(4));
  straight.step(0);
  straight.optimizer->zero_grad();
  straight.micro_batch(1);
  const StateDict saved = straight.checkpoint();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : straight.net->parameters())
    gradients.push_back(parameter.grad().clone());
  straight.micro_batch(2);
  straight.mode->optimizer_step(*straight.optimizer);
  resumed.load(saved);
  for (size_t i = 0; i < gradients.size(); ++i) resumed.net->parameters()[i].mutable_grad() = gradients[i];
  resumed.micro_batch(2);
  resumed.mode->optimizer_step(*resumed.optimizer);
  EXPECT_EQ(difference(straight.checkpoint(), resumed.checkpoint()), "");
}

TEST(Fp8Modes, F8_32_AnotherHistoryLengthIsCutOrPadded) {
  Training four("fp8-mixed", history(4));
  for (int i = 0; i < 5; ++i) four.step(i);
  const StateDict saved = four.checkpoint();
  const at::Tensor before = four.state()->forward.amax_history.clone();
  Training two("fp8-mixed", history(2)), six("fp8-mixed", history(6));
  EXPECT_THAT(two.load(saved), ElementsAre("its FP8 histories of 4 steps are cut to 2"));
  EXPECT_TRUE(at::equal(two.state()->forward.amax_history, before.slice(0, 0, 2)));
  EXPECT_THAT(six.load(saved), ElementsAre("its FP8 histories of 4 steps are padded to 6"));
  EXPECT_TRUE(at::equal(six.state()->forward.amax_history.slice(0, 0, 4), before));
  EXPECT_TRUE(at::equal(six.state()->forward.amax_history.slice(0, 4), at::zeros({2, 3})));
  EXPECT_TRUE(at::equal(six.state()->forward.scale, four.state()->forward.scale));
}

TEST(Fp8Modes, CheckpointsOfOtherModesLoadWithAStatedDifference) {
  Training fp8("fp8-mixed"), bf16("bf16-mixed");
  fp8.step(0), bf16.step(0);
  const StateDict of_fp8 = fp8.checkpoint(), of_bf16 = bf16.checkpoint();
  EXPECT_THAT(bf16.load(of_fp8), ElementsAre("its fp8 state is dropped"));
  EXPECT_THAT(fp8.load(of_bf16), ElementsAre("it has no FP8 scales, so these start anew"));
  EXPECT_TRUE(at::equal(fp8.state()->forward.scale, at::ones({3})));
  Training blocks("fp8-mixed", {.recipe = MXFP8BlockScaling()});
  EXPECT_THAT(blocks.load(of_fp8),
              ElementsAre(AllOf(HasSubstr("that of DelayedScaling in HYBRID and is dropped"),
                                HasSubstr("MXFP8BlockScaling in E4M3"))));
  EXPECT_THAT(blocks.load(of_bf16), IsEmpty()) << "its scales are those of the moment";
}

// The scales are those of the format: a scale for E5M2 would saturate all gradients in E4M3.
TEST(Fp8Modes, TheStateOfAnotherFormatIsDropped) {
  Training hybrid("fp8-mixed", history(2)),
      e4m3("fp8-mixed", {.recipe = DelayedScaling{.fp8_format = Fp8Format::kE4M3, .amax_history_len = 2}});
  hybrid.step(0);
  EXPECT_THAT(e4m3.load(hybrid.checkpoint()),
              ElementsAre(AllOf(HasSubstr("DelayedScaling in HYBRID and is dropped"),
                                HasSubstr("this run uses DelayedScaling in E4M3"))));
  EXPECT_TRUE(at::equal(e4m3.state()->backward.scale, at::ones({2})));
}

TEST(Fp8Modes, AnotherChoiceOfLayersIsAStatedDifference) {
  Training inner("fp8-mixed"), all("fp8-mixed", {.fp8_first_and_last = true});
  const StateDict of_inner = inner.checkpoint(), of_all = all.checkpoint();
  EXPECT_THAT(all.load(of_inner), ElementsAre("it has no FP8 state of 0, 4, which start anew"));
  EXPECT_THAT(inner.load(of_all),
              ElementsAre(HasSubstr("of 2 layers that compute in high precision here is dropped")));
}

TEST(Fp8Modes, AStateThatDoesNotFitIsRefusedUnchanged) {
  Training run("fp8-mixed", history(3));
  run.step(0);
  const StateDict good = run.checkpoint();
  StateDict bad = snapshot(run.mode->state_dict());
  auto& layers = *bad["fp8_state"].get_if<StateDict>()->at("layers").get_if<StateDict>();
  layers["2"].get_if<StateDict>()->at("forward").get_if<StateDict>()->at("scale") = at::ones({7});
  EXPECT_THAT(error_of([&] { run.mode->load_state_dict(StateReader(bad)); }),
              HasSubstr("fp8_state.layers.2.forward.scale"));
  EXPECT_EQ(difference(run.checkpoint(), good), "");
}

TEST(Fp8Modes, AStateThatDoesNotFitLeavesTheLossScale) {
  Training run("transformer-engine-float16", {.loss_scale = "dynamic"});
  StateDict bad = snapshot(run.mode->state_dict());
  auto& layers = *bad["fp8_state"].get_if<StateDict>()->at("layers").get_if<StateDict>();
  layers["2"].get_if<StateDict>()->at("forward").get_if<StateDict>()->at("scale") = at::ones({7});
  bad["loss_scale"].get_if<StateDict>()->at("scale") = 4.0;
  EXPECT_THROW(run.mode->load_state_dict(StateReader(bad)), c10::ValueError);
  EXPECT_EQ(run.mode->loss_scale().item<float>(), 65536);
}

TEST(Fp8Modes, AModeThatIsMadeWithoutTheRegistryHasItsName) {
  EXPECT_EQ(TransformerEngine(at::kHalf, at::kCPU).name(), "transformer-engine-float16");
  EXPECT_EQ(TransformerEngine(at::kBFloat16, at::kCPU).name(), "transformer-engine");
  EXPECT_EQ(Fp8Mixed(at::kCPU).name(), "fp8-mixed");
}

TEST(Fp8Modes, TheLossFollowsThatOfBf16) {
  const auto final_loss = [](const std::string& name, const PrecisionOptions& options = {}) {
    Training run(name, options);
    double loss = 0;
    for (int i = 0; i < 120; ++i) loss = run.step(i % 4);
    return loss;
  };
  const double bf16 = final_loss("bf16-mixed");
  EXPECT_LT(bf16, 1.5) << "it learns; it begins at 2.3";
  for (const auto& [recipe, options] : recipes()) {
    const double loss = final_loss("fp8-mixed", options);
    EXPECT_NE(loss, bf16) << recipe;
    EXPECT_NEAR(loss, bf16, recipe == "nvfp4" ? 0.2 : 0.1) << recipe;
  }
  // 16-bit weights of their own lose small updates.
  EXPECT_NEAR(final_loss("transformer-engine"), final_loss("bf16-true"), 0.15);
  EXPECT_NEAR(final_loss("transformer-engine", {.master_weights = true}), bf16, 0.15);
}

TEST(Fp8Modes, OptionsOfOtherModesAreRefused) {
  const auto refused = [](const std::string& name, const PrecisionOptions& options) {
    return error_of([&] { make_precision(name, at::kCPU, options); });
  };
  EXPECT_THAT(refused("bf16-mixed", {.recipe = MXFP8BlockScaling()}),
              AllOf(HasSubstr("'bf16-mixed' with recipe MXFP8BlockScaling"),
                    HasSubstr("fp8-mixed, transformer-engine")));
  EXPECT_THAT(refused("nf4", {.fp8_first_and_last = true}), HasSubstr("with fp8_first_and_last true"));
  EXPECT_THAT(refused("fp8-mixed", history(0)), HasSubstr("amax_history_len is 0"));
  EXPECT_THAT(refused("fp8-mixed", {.loss_scale = "dynamic"}), HasSubstr("only fp16 gradients need a scale"));
  EXPECT_THAT(refused("fp8-mixed", {.master_weights = true}), HasSubstr("its weights are not 16-bit"));
  EXPECT_THAT(refused("fp8-mixed", {.blocksize = 64}), HasSubstr("blocksize 64"));
}

TEST(Fp8Modes, NanInAnInputReachesTheLoss) {
  Training run("fp8-mixed", {.fp8_first_and_last = true});
  at::Tensor x = torch::ones({2, 16});
  x[0][0] = NAN;
  const at::Tensor y = run.forward(x);
  EXPECT_TRUE(y[0].isnan().all().item<bool>());
  EXPECT_FALSE(y[1].isnan().any().item<bool>());
}

}  // namespace
}  // namespace mantissa::fp8_modes_test
