// Tests of modes whose recipe computes attention in FP8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/attention_fp8.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/precision/fp8.h"
#include "mantissa/precision/registry.h"

namespace mantissa::fp8_attentions_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;

struct SelfAttentionImpl : torch::nn::Module, HasAttention {
  at::Tensor forward(const at::Tensor& x) {
    std::vector<at::Tensor> parts = qkv(x).split(16, 2);
    for (at::Tensor& part : parts) part = part.view({x.size(0), x.size(1), 4, 4}).transpose(1, 2);
    const at::Tensor y = attend({.query = parts[0], .key = parts[1], .value = parts[2], .is_causal = true});
    return out(y.transpose(1, 2).flatten(2));
  }
  torch::nn::Linear qkv = register_module("qkv", torch::nn::Linear(16, 48));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(16, 16));
};
TORCH_MODULE(SelfAttention);

PrecisionOptions with_attention(std::vector<std::string> ignored = {}) {
  return {.ignore_modules = std::move(ignored),
          .recipe = DelayedScaling{.amax_history_len = 4, .fp8_dpa = true}};
}

struct Training {
  explicit Training(const PrecisionOptions& options = with_attention(), const std::string& name = "fp8-mixed")
      : mode(make_precision(name, at::kCPU, options)) {
    torch::manual_seed(3);
    net = torch::nn::Sequential(torch::nn::Linear(8, 16), SelfAttention(), torch::nn::Linear(16, 5));
    mode->convert_module(*net);
    optimizer =
        std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    mode->setup_optimizer(*optimizer);
  }
  at::Tensor forward(int64_t number) {
    const at::Tensor x = (torch::arange(4 * 6 * 8, at::kFloat).view({4, 6, 8}) * 0.37 + number).sin();
    const Scope scope = mode->forward_context();
    return net->forward(mode->convert_input(x));
  }
  double step(int64_t number) {
    optimizer->zero_grad();
    const at::Tensor loss = forward(number).to(at::kFloat).square().mean();
    mode->backward(loss);
    mode->optimizer_step(*optimizer);
    return loss.item<double>();
  }
  HasAttention& attention() { return *net[1]->as<SelfAttention>(); }
  std::shared_ptr<const Fp8AttentionRule> rule() {
    return std::dynamic_pointer_cast<const Fp8AttentionRule>(attention().attention_rule());
  }

  std::unique_ptr<Precision> mode;
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer;
};

TEST(Fp8Attentions, TheRecipeDecides) {
  Training with, without(PrecisionOptions{.recipe = DelayedScaling{.amax_history_len = 4}});
  EXPECT_TRUE(with.rule());
  EXPECT_FALSE(without.attention().attention_rule());
  EXPECT_FALSE(at::equal(with.forward(0).detach(), without.forward(0).detach()));
  const std::vector<LayerReport> rows = with.mode->layer_report();
  ASSERT_EQ(rows.size(), 5);
  EXPECT_EQ(rows[4].name, "1");
  EXPECT_EQ(rows[4].products, Format::kFloat8E4M3);
  EXPECT_TRUE(rows[4].sizes.empty());
  EXPECT_EQ(without.mode->layer_report().size(), 4);
}

TEST(Fp8Attentions, ItsScalesMoveOnWithTheStep) {
  Training run;
  run.step(0);
  const auto& scores = *run.rule()->state().scores;
  EXPECT_NE(scores.forward.scale[0].item<float>(), 1);
  EXPECT_NE(run.rule()->state().context->backward.scale[0].item<float>(), 1);
  EXPECT_EQ(scores.forward.amax_history[0][0].item<float>(), 0);
  const double first = run.step(0);
  for (int i = 0; i < 20; ++i) run.step(0);
  EXPECT_LT(run.step(0), first / 2) << "it trains";
}

TEST(Fp8Attentions, AResumedRunContinuesBitForBit) {
  for (const char* name : {"fp8-mixed", "transformer-engine"}) {
    SCOPED_TRACE(name);
    Training whole(with_attention(), name), rest(with_attention(), name);
    for (int i = 0; i < 3; ++i) whole.step(i);
    const StateDict saved =
        snapshot({{"precision", whole.mode->state_dict()}, {"optimizer", optimizer_state(*whole.optimizer)}});
    const StateReader layers = StateReader(saved).at("precision").at("fp8_state").at("layers");
    EXPECT_TRUE(layers.find("1.scores") && layers.find("1.context"));
    {
      const at::NoGradGuard no_grad;
      for (const auto& entry : whole.net->named_parameters())
        rest.net->named_parameters()[entry.key()].copy_(entry.value());
    }
    load_optimizer_state(*rest.optimizer, StateReader(saved).at("optimizer"));
    EXPECT_THAT(rest.mode->load_state_dict(StateReader(saved).at("precision")), ElementsAre());
    for (int i = 3; i < 6; ++i) EXPECT_EQ(whole.step(i), rest.step(i));
  }
}

TEST(Fp8Attentions, AModelWithoutAttentionIsRefused) {
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 5));
  EXPECT_THAT(
      error_of([&] { make_precision("fp8-mixed", at::kCPU, with_attention())->convert_module(*net); }),
      AllOf(HasSubstr("precision 'fp8-mixed': the recipe has fp8_dpa, and "), HasSubstr("has no attention"),
            HasSubstr("leave fp8_dpa out")));
}

TEST(Fp8Attentions, AModuleThatIsOneItselfIsConverted) {
  SelfAttention attention;
  const auto mode = make_precision("fp8-mixed", at::kCPU, with_attention());
  mode->convert_module(*attention);
  EXPECT_TRUE(std::dynamic_pointer_cast<const Fp8AttentionRule>(attention->attention_rule()));
  EXPECT_EQ(mode->layer_report().back().name, "attention");
  const StateDict state = mode->state_dict();
  const StateReader layers = StateReader(state).at("fp8_state").at("layers");
  EXPECT_TRUE(layers.find("scores") && layers.find("context"));
}

TEST(Fp8Attentions, IgnoredOnesAndThoseOfTheUserStayAsTheyAre) {
  Training ignoring(with_attention({"1"}));
  EXPECT_FALSE(ignoring.attention().attention_rule());
  EXPECT_EQ(ignoring.mode->layer_report()[4].reason, "ignore_modules names it");

  Training run(PrecisionOptions{.recipe = DelayedScaling{}});
  const auto users =
      std::make_shared<Fp8AttentionRule>(Fp8AttentionState(Float8CurrentScaling{.fp8_dpa = true}));
  run.attention().set_attention_rule(users);
  run.mode->convert_module(*run.net);
  EXPECT_EQ(run.attention().attention_rule(), users);
  EXPECT_EQ(run.mode->layer_report().back().reason, "it was an FP8 attention before");
}

TEST(Fp8Attentions, AUsersOneStartsAsItCameToTheModeWhereAStateLacksIt) {
  Training run;
  const Fp8AttentionState state(DelayedScaling{.amax_history_len = 4, .fp8_dpa = true});
  state.scores->forward.scale.fill_(8);
  run.attention().set_attention_rule(std::make_shared<Fp8AttentionRule>(state));
  const auto mode = make_precision("fp8-mixed", at::kCPU, with_attention());
  mode->convert_module(*run.net);
  state.scores->forward.scale.fill_(16);
  const StateDict none;
  mode->load_state_dict(StateReader(none));
  EXPECT_TRUE(at::equal(state.scores->forward.scale, at::full_like(state.scores->forward.scale, 8)));
  EXPECT_EQ(state.context->forward.scale[0].item<float>(), 1);
}

TEST(Fp8Attentions, TheNextModeEndsThemAndAnotherConversionKeepsTheirScales) {
  Training run;
  run.step(0);
  const auto state = run.rule()->state().scores;
  run.mode->convert_module(*run.net);
  EXPECT_EQ(run.rule()->state().scores, state);
  EXPECT_EQ(run.mode->layer_report().size(), 5);
  make_precision("bf16-mixed", at::kCPU)->convert_module(*run.net);
  EXPECT_FALSE(run.attention().attention_rule());
}

TEST(Fp8Attentions, AreSampledAsLayersAre) {
  Training run;
  run.mode->sample_layers(LayerSampling::kTensorsAndErrors);
  run.step(0);
  EXPECT_THAT(run.mode->layer_statistics(),
              ElementsAre(Key("1.context"), Key("1.out"), Key("1.qkv"), Key("1.scores")));
}

}  // namespace
}  // namespace mantissa::fp8_attentions_test
