// The modes with 16-bit weights and master weights: their steps and their state.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/precision/true_dtype.h"

namespace mantissa::true_dtype_master_weights_test {
namespace {

/// Apex's O2 on one layer, with a loss scale of 256.
struct O2 {
  O2()
      : mode(at::kHalf,
             {.master_weights = true,
              .scaler = std::make_unique<GradScaler>(at::kCPU, GradScalerOptions{.init_scale = 256})}) {
    mode.convert_module(*net);
    net->weight.data().fill_(1);
  }
  StepResult step(double gradient) {
    optimizer.zero_grad();
    mode.backward((net->weight.to(at::kFloat) * gradient).sum());
    mode.clip_gradients(optimizer, 1e9);
    return mode.optimizer_step(optimizer);
  }
  float weight() { return net->weight[0][0].item<float>(); }
  torch::nn::Linear net{torch::nn::LinearOptions(2, 2).bias(false)};
  TrueDtype mode;
  torch::optim::SGD optimizer{net->parameters(), 1.0};
};

TEST(TrueDtypeMasterWeights, TakeSmallStepsAndASkippedOneChangesNothing) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  for (int i = 0; i < 1024; ++i) EXPECT_FALSE(o2.step(0x1p-14).skipped());
  EXPECT_EQ(o2.weight(), 0.9375);  // 2^-14 is an eighth of an fp16 ulp there
  const StepResult skipped = o2.step(HUGE_VAL);
  EXPECT_EQ(skipped.cause(), SkipCause::kNonFiniteGradients);
  EXPECT_EQ(skipped.first_nonfinite_parameter(), "weight");
  EXPECT_EQ(o2.weight(), 0.9375);
}

TEST(TrueDtypeMasterWeights, AParameterThatIsAddedLaterHasOneToo) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  o2.step(0x1p-14);
  o2.net->weight.set_requires_grad(false);
  const at::Tensor added = torch::ones({2}, at::kHalf).requires_grad_();
  o2.optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector{added}));
  const at::Tensor weight = o2.net->weight.clone();
  for (int i = 0; i < 1024; ++i) {
    o2.optimizer.zero_grad();
    o2.mode.backward((added.to(at::kFloat) * 0x1p-14).sum());
    if (i % 2 == 0) o2.mode.clip_gradients(o2.optimizer, 1e9);
    EXPECT_FALSE(o2.mode.optimizer_step(o2.optimizer).skipped());
  }
  EXPECT_EQ(added[0].item<float>(), 0.9375);  // 2^-14 is an eighth of an fp16 ulp there
  EXPECT_TRUE(torch::equal(o2.net->weight, weight)) << "it is frozen";
  EXPECT_TRUE(o2.mode.model_parameter(o2.optimizer.param_groups()[1].params()[0]).is_same(added));
  EXPECT_EQ(o2.mode.state_dict().at("master_weights").get_if<StateDict>()->size(), 2U);
}

TEST(TrueDtypeMasterWeights, AParameterThatIsAddedLaterHasOneWithoutAScaleToo) {
  TrueDtype mode(at::kBFloat16, {.master_weights = true});
  torch::nn::Linear net(1, 1);
  mode.convert_module(*net);
  torch::optim::SGD optimizer({net->weight}, 1.0);
  mode.setup_optimizer(optimizer);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector{net->bias}));
  mode.backward(net->bias.sum());
  EXPECT_FALSE(mode.optimizer_step(optimizer).skipped());
  EXPECT_EQ(optimizer.param_groups()[1].params()[0].scalar_type(), at::kFloat);
  const at::Tensor clipped = torch::ones({1}, at::kBFloat16).requires_grad_();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector{clipped}));
  mode.backward(clipped.sum());
  mode.clip_gradients(optimizer, 0.5);
  EXPECT_EQ(optimizer.param_groups()[2].params()[0].scalar_type(), at::kFloat)
      << "its gradient is clipped in float32";
}

TEST(TrueDtypeMasterWeights, TheEndOfARunMovesTheScale) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  EXPECT_TRUE(o2.step(HUGE_VAL).skipped());
  o2.mode.teardown();
  EXPECT_EQ(o2.mode.scaler()->get_scale(), 128);
}

TEST(TrueDtypeMasterWeights, AParameterThatIsAddedTwiceOrHasSteppedIsRefused) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  o2.step(1);
  const at::Tensor weight = o2.net->weight.clone();
  o2.optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{o2.net->weight}));
  EXPECT_THAT([&] { o2.step(1); },
              testing::ThrowsMessage<c10::ValueError>(
                  testing::HasSubstr("parameter 0 of group 1 was added to an optimizer that has a master")));
  EXPECT_TRUE(torch::equal(o2.net->weight, weight));

  O2 other;
  torch::optim::AdamW adam(other.net->parameters(), 0.1);
  other.mode.setup_optimizer(adam);
  const at::Tensor added = torch::ones({2}, at::kHalf).requires_grad_();
  adam.add_param_group(torch::optim::OptimizerParamGroup(std::vector{added}));
  added.mutable_grad() = torch::ones({2}, at::kHalf);
  adam.step();
  EXPECT_THAT([&] { other.mode.unscale_gradients(adam); },
              testing::ThrowsMessage<c10::ValueError>(testing::HasSubstr("stepped without a master weight")));
}

TEST(TrueDtypeMasterWeights, AStateHoldsTheMasterWeightsAndResumesBitForBit) {
  O2 straight, resumed;
  straight.mode.setup_optimizer(straight.optimizer);
  for (int i = 0; i < 300; ++i) straight.step(0x1p-14);
  const StateDict saved = snapshot(straight.mode.state_dict());
  EXPECT_EQ(StateReader(saved).at("master_weights").at("weight").to_tensor().scalar_type(), at::kFloat);

  resumed.mode.setup_optimizer(resumed.optimizer);
  {
    const torch::NoGradGuard no_grad;
    resumed.net->weight.copy_(straight.net->weight);
  }
  EXPECT_THAT(resumed.mode.load_state_dict(StateReader(saved)), testing::IsEmpty());
  for (int i = 300; i < 1024; ++i) resumed.step(0x1p-14);
  EXPECT_EQ(resumed.weight(), 0.9375);
}

TEST(TrueDtypeMasterWeights, AStateOfAnotherModelIsRefusedAndChangesNothing) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  o2.step(0x1p-14);
  const StateDict before = snapshot(o2.mode.state_dict());
  const auto error = [&](const at::Tensor& weight) {
    StateDict wrong = before;
    wrong["master_weights"] = StateDict{{"weight", weight}};
    try {
      o2.mode.load_state_dict(StateReader(wrong, "precision"));
    } catch (const c10::ValueError& thrown) {
      return std::string(thrown.what_without_backtrace());
    }
    return std::string("none");
  };
  EXPECT_THAT(error(torch::ones({3, 3})),
              testing::HasSubstr("precision.master_weights.weight: is Float [3, 3]"));
  EXPECT_THAT(error(torch::ones({2, 2}, at::kHalf)), testing::HasSubstr("is Half [2, 2]"));
  EXPECT_EQ(difference(before, o2.mode.state_dict()), "");
}

TEST(TrueDtypeMasterWeights, AStateOfAnotherModeSaysWhatIsLost) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  o2.step(0.5);
  const StateDict scaled = snapshot(o2.mode.state_dict()), none;
  TrueDtype plain(at::kBFloat16);
  EXPECT_THAT(plain.load_state_dict(StateReader(scaled)), testing::ElementsAre("its loss scale is dropped"));
  EXPECT_THAT(o2.mode.load_state_dict(StateReader(none)),
              testing::ElementsAre("it has no loss scale, so the scale starts at its initial value"));
  const auto masters = master_weights_of(StateReader(scaled));
  ASSERT_EQ(masters.size(), 1);
  EXPECT_EQ(masters.at("weight")[0][0].item<float>(), 0.5F);
  EXPECT_TRUE(master_weights_of(StateReader(none)).empty());
}

TEST(TrueDtypeMasterWeights, AMasterWeightGoesByTheNameOfItsParameter) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  const at::Tensor master = main_params(o2.optimizer)[0];
  EXPECT_FALSE(master.is_same(o2.net->weight));
  EXPECT_EQ(o2.mode.parameter_name(master), "weight");
  EXPECT_TRUE(o2.mode.model_parameter(master).is_same(o2.net->weight));
  EXPECT_TRUE(o2.mode.model_parameter(o2.net->weight).is_same(o2.net->weight));
  EXPECT_EQ(o2.mode.parameter_name(torch::ones(1)), "");
}

/// Two layers with equal parameter names, as a GAN's, each with its optimizer.
struct Pair {
  Pair() {
    mode.convert_module(*first);
    mode.convert_module(*second);
  }
  void set_up() {
    for (auto* optimizer : {&optimizer_of_first, &optimizer_of_second}) mode.setup_optimizer(*optimizer);
  }
  void step() {
    optimizer_of_first.zero_grad();
    optimizer_of_second.zero_grad();
    mode.backward((first->weight * 0x1p-14 + second->weight * 0x1p-13).to(at::kFloat).sum());
    mode.optimizer_step(optimizer_of_first);
    mode.optimizer_step(optimizer_of_second);
  }
  std::vector<std::string> keys() const {
    const StateDict state = mode.state_dict();
    std::vector<std::string> names;
    for (const auto& [name, weight] : master_weights_of(StateReader(state))) names.push_back(name);
    return names;
  }
  torch::nn::Linear first{2, 2}, second{2, 2};
  TrueDtype mode{at::kBFloat16, {.master_weights = true}};
  torch::optim::SGD optimizer_of_first{first->parameters(), 1.0},
      optimizer_of_second{second->parameters(), 1.0};
};

TEST(TrueDtypeMasterWeights, AStateHoldsTheMasterWeightsOfTwoModulesWithEqualNames) {
  Pair straight, resumed;
  straight.set_up();
  straight.step();
  EXPECT_THAT(straight.keys(), testing::ElementsAre("bias", "bias#2", "weight", "weight#2"));
  const StateDict saved = snapshot(straight.mode.state_dict());
  resumed.set_up();
  EXPECT_THAT(resumed.mode.load_state_dict(StateReader(saved)), testing::IsEmpty());
  EXPECT_EQ(difference(saved, resumed.mode.state_dict()), "");
}

TEST(TrueDtypeMasterWeights, AMasterWeightWithoutANameIsSavedByItsPlace) {
  TrueDtype mode(at::kBFloat16, {.master_weights = true});
  const auto weight = [] { return torch::ones({2}, at::kBFloat16).requires_grad_(); };
  torch::optim::SGD first({weight(), weight()}, 1.0), second({weight()}, 1.0);
  for (auto* optimizer : {&first, &second}) mode.setup_optimizer(*optimizer);
  const StateDict state = mode.state_dict();
  std::vector<std::string> names;
  for (const auto& [name, master] : master_weights_of(StateReader(state))) names.push_back(name);
  EXPECT_THAT(names,
              testing::ElementsAre("optimizer 0, 16-bit parameter 0", "optimizer 0, 16-bit parameter 1",
                                   "optimizer 1, 16-bit parameter 0"));
}

TEST(TrueDtypeMasterWeights, AStateThatHoldsOneOfTwoEqualNamesStillLoads) {
  Pair straight, resumed;
  straight.set_up();
  straight.step();
  StateDict saved = snapshot(straight.mode.state_dict());
  StateDict& masters = *saved.at("master_weights").get_if<StateDict>();
  masters.erase("weight#2");
  masters.erase("bias#2");
  resumed.set_up();
  EXPECT_THAT(resumed.mode.load_state_dict(StateReader(saved)),
              testing::ElementsAre(testing::HasSubstr("it lacks 2 master weights")));
  const StateDict state = resumed.mode.state_dict();
  const auto loaded = master_weights_of(StateReader(state));
  EXPECT_TRUE(
      at::equal(loaded.at("weight"), StateReader(saved).at("master_weights").at("weight").to_tensor()));
}

TEST(TrueDtypeMasterWeights, AStateThatLacksOneMasterWeightSaysSo) {
  Pair straight, resumed;
  straight.set_up();
  StateDict saved = snapshot(straight.mode.state_dict());
  saved.at("master_weights").get_if<StateDict>()->erase("bias#2");
  resumed.set_up();
  EXPECT_THAT(resumed.mode.load_state_dict(StateReader(saved)),
              testing::ElementsAre(testing::HasSubstr("it lacks 1 master weights")));
}

TEST(TrueDtypeMasterWeights, TheStateOfANewRunLeavesOutTheLastRunsModules) {
  Pair pair;
  pair.mode.setup_optimizer(pair.optimizer_of_first);
  pair.mode.teardown();
  EXPECT_THAT(pair.keys(), testing::ElementsAre("bias", "weight")) << "until a new run has an optimizer";
  pair.mode.setup_optimizer(pair.optimizer_of_second);
  EXPECT_THAT(pair.keys(), testing::ElementsAre("bias", "weight"));
  const StateDict state = pair.mode.state_dict();
  EXPECT_TRUE(at::equal(master_weights_of(StateReader(state)).at("weight"),
                        pair.optimizer_of_second.param_groups()[0].params()[0]));
  pair.mode.teardown();
  pair.mode.setup_optimizer(pair.optimizer_of_second);
  pair.mode.setup_optimizer(pair.optimizer_of_first);  // its master weights from the first run
  pair.step();
  EXPECT_THAT(pair.keys(), testing::ElementsAre("bias", "bias#2", "weight", "weight#2"));
  const StateDict both = pair.mode.state_dict();
  EXPECT_TRUE(at::equal(master_weights_of(StateReader(both)).at("weight#2"),
                        pair.optimizer_of_first.param_groups()[0].params()[0]));
}

TEST(TrueDtypeMasterWeights, ARunBeginsWithItsFirstOptimizerThoughTheRunBeforeHadIt) {
  Pair pair;
  pair.mode.setup_optimizer(pair.optimizer_of_first);
  pair.mode.teardown();
  pair.set_up();  // the optimizer of the first module is known, that of the second one is new
  EXPECT_THAT(pair.keys(), testing::ElementsAre("bias", "bias#2", "weight", "weight#2"));
}

TEST(TrueDtypeMasterWeights, AMasterWeightHasTheNameInTheModuleConvertedLast) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  torch::nn::Sequential outer(o2.net);
  o2.mode.convert_module(*outer);
  EXPECT_EQ(o2.mode.parameter_name(o2.net->weight), "0.weight");
  EXPECT_EQ(o2.mode.parameter_name(main_params(o2.optimizer)[0]), "0.weight");
  const StateDict state = o2.mode.state_dict();
  EXPECT_TRUE(StateReader(state).at("master_weights").find("0.weight"));
}

TEST(TrueDtypeMasterWeights, TakeOverWhatIsWrittenThroughData) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  for (int i = 0; i < 4; ++i) {
    o2.step(2);
    o2.net->weight.data().clamp_(-1, 1);  // as WGAN does
  }
  o2.step(-0.5);
  EXPECT_EQ(o2.weight(), -0.5);
}

TEST(TrueDtypeMasterWeights, TakeOverWhatIsWrittenIntoTheModel) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  o2.step(0.5);
  {
    const torch::NoGradGuard no_grad;
    o2.net->weight.fill_(100);
  }
  o2.step(0.5);
  EXPECT_EQ(o2.weight(), 99.5);
}

TEST(TrueDtypeMasterWeights, KeepTheirLowBitsWhenTheModelsAreWrittenAndPutBack) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  for (int i = 0; i < 1024; ++i) {
    o2.step(0x1p-14);
    const torch::NoGradGuard no_grad;
    const at::Tensor trained = o2.net->weight.clone();
    o2.net->weight.fill_(7);  // as when an average's weights are validated
    o2.net->weight.copy_(trained);
  }
  EXPECT_EQ(o2.weight(), 0.9375);
}

TEST(TrueDtypeMasterWeights, SettingUpAgainKeepsTheCopiesAndRefusesNothing) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  o2.step(0x1p-14);
  o2.mode.setup_optimizer(o2.optimizer);  // a second fit with the same optimizer
  for (int i = 1; i < 1024; ++i) EXPECT_FALSE(o2.step(0x1p-14).skipped());
  EXPECT_EQ(o2.weight(), 0.9375);
}

TEST(TrueDtypeMasterWeights, RefuseLbfgs) {
  torch::nn::Linear net(2, 2);
  TrueDtype mode(at::kBFloat16, {.master_weights = true});
  mode.convert_module(*net);
  torch::optim::LBFGS lbfgs(net->parameters(), 0.1);
  EXPECT_THROW(mode.setup_optimizer(lbfgs), c10::TypeError);
  EXPECT_TRUE(lbfgs.param_groups()[0].params()[0].is_same(net->weight));
  EXPECT_THROW(mode.optimizer_step(lbfgs, [] { return torch::ones({}); }), c10::TypeError);
  EXPECT_THROW(mode.optimizer_step(lbfgs), c10::TypeError);
}

TEST(TrueDtypeMasterWeights, TwoOptimizersOfOneWeightAreRefusedAtTheStepOfTheFirst) {
  O2 o2;
  o2.mode.setup_optimizer(o2.optimizer);
  torch::optim::SGD second({o2.net->weight}, 1.0);  // the 16-bit weight again
  o2.mode.setup_optimizer(second);
  const float before = o2.weight();
  try {
    o2.step(1);
    FAIL() << "stepped";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("give every weight to one optimizer"), std::string::npos);
  }
  EXPECT_EQ(o2.weight(), before);
}

TEST(TrueDtypeMasterWeights, AStepWithoutSetupOptimizerSaysSo) {
  O2 o2;
  EXPECT_THROW(o2.step(1), c10::ValueError);
}

TEST(TrueDtypeMasterWeights, AdagradStepsMasterWeights) {
  O2 o2;
  torch::optim::Adagrad adagrad(o2.net->parameters(), 0.01);
  o2.mode.setup_optimizer(adagrad);
  o2.mode.backward(o2.net->weight.to(at::kFloat).sum());
  EXPECT_FALSE(o2.mode.optimizer_step(adagrad).skipped());
  EXPECT_NEAR(o2.net->weight[0][0].item<float>(), 0.99, 1e-3);  // Adagrad's first step is lr
}

}  // namespace
}  // namespace mantissa::true_dtype_master_weights_test
