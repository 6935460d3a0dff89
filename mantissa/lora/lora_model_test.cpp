#include "mantissa/lora/test_support_internal.h"
#include "mantissa/weights/marked_weight.h"

namespace mantissa::lora_model_test {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LoraModels : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(1); }

  /// Expects that nothing was added to the net.
  void expect_untouched(LoraNet& net) {
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().requires_grad()) << item.key();
      EXPECT_FALSE(is_packed(item.value())) << item.key();
      EXPECT_EQ(item.key().find("lora"), std::string::npos) << item.key();
    }
  }

  const Tensor x_ = torch::randn({5, 6});
};

std::vector<std::string> trained(const torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters())
    if (item.value().requires_grad()) names.push_back(item.key());
  return names;
}

TEST_F(LoraModels, ANewAdapterChangesNothing) {
  for (const bool use_dora : {false, true}) {
    LoraNet net;
    const Tensor before = net(x_).detach();
    const LoraModel lora(*net, {.use_dora = use_dora});
    EXPECT_TRUE(at::allclose(net(x_), before, 1e-5, 1e-6));
    randomize(*net);
    EXPECT_FALSE(at::allclose(net(x_), before, 1e-2, 1e-2));
  }
}

TEST_F(LoraModels, AnEmptyLayerHasAnEmptyAdapter) {
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{0, 3}, {4, 0}, {0, 0}})
    for (const bool use_dora : {false, true}) {
      torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(4, 2)));
      net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1, 1)));
      torch::nn::LinearImpl& layer = *net[1]->as<torch::nn::Linear>();
      layer.weight.set_data(at::empty({out, in}));
      layer.bias.set_data(at::ones({out}));
      testing::internal::CaptureStderr();
      LoraModel lora(*net, {.r = 2, .use_dora = use_dora, .target_modules = {"1"}});
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
      EXPECT_EQ(parameter(*net, "1.lora_A.default.weight").sizes(), at::IntArrayRef({2, in}));
      EXPECT_EQ(parameter(*net, "1.lora_B.default.weight").sizes(), at::IntArrayRef({out, 2}));
      const Tensor y = layer.forward(torch::ones({5, in}));
      EXPECT_TRUE(at::equal(y, at::ones({5, out})));
      y.sum().backward();
      EXPECT_EQ(lora.merge_adapter().size(), 1u);
      EXPECT_TRUE(at::equal(layer.forward(torch::ones({5, in})), y));
      lora.unload();
      EXPECT_FALSE(is_packed(layer.weight));
    }
}

TEST_F(LoraModels, ParametersHavePeftsNamesAndShapes) {
  LoraNet net;
  const LoraModel lora(*net, {.r = 4, .use_dora = true, .target_modules = {"up"}});
  EXPECT_THAT(lora.layers(), ElementsAre("blocks.0.up", "blocks.1.up"));
  EXPECT_THAT(
      trained(*net),
      ElementsAre("blocks.0.up.lora_A.default.weight", "blocks.0.up.lora_B.default.weight",
                  "blocks.0.up.lora_magnitude_vector.default.weight", "blocks.1.up.lora_A.default.weight",
                  "blocks.1.up.lora_B.default.weight", "blocks.1.up.lora_magnitude_vector.default.weight"));
  EXPECT_EQ(parameter(*net, "blocks.0.up.lora_A.default.weight").sizes(), at::IntArrayRef({4, 6}));
  EXPECT_EQ(parameter(*net, "blocks.0.up.lora_B.default.weight").sizes(), at::IntArrayRef({10, 4}));
  EXPECT_EQ(parameter(*net, "blocks.0.up.lora_magnitude_vector.default.weight").sizes(),
            at::IntArrayRef({10}));
  EXPECT_TRUE(is_packed(net->up(0).weight));
  EXPECT_TRUE(net->up(0).weight.is_same(parameter(*net, "blocks.0.up.weight"))) << "the typed member";
  const auto [trained_count, all] = lora.get_nb_trainable_parameters();
  EXPECT_EQ(trained_count, 2 * (4 * 6 + 10 * 4 + 10));
  EXPECT_GT(all, trained_count);
}

TEST_F(LoraModels, InitialValuesAreThoseOfPeft) {
  torch::nn::Sequential net(torch::nn::Linear(400, 30));
  const LoraModel lora(*net, {.r = 50, .use_dora = true});
  const Tensor a = parameter(*net, "0.lora_A.default.weight");
  // Kaiming-uniform with a = sqrt(5): bounds of 1 / sqrt(in).
  EXPECT_LE(a.abs().max().item<float>(), 0.05);
  EXPECT_GT(a.abs().max().item<float>(), 0.0499);
  EXPECT_NEAR(a.std().item<float>(), 0.05 / std::sqrt(3), 1e-3);
  EXPECT_EQ(parameter(*net, "0.lora_B.default.weight").abs().max().item<float>(), 0);
  EXPECT_TRUE(at::allclose(parameter(*net, "0.lora_magnitude_vector.default.weight"),
                           base_weight(parameter(*net, "0.weight")).norm(2, 1)));
}

TEST_F(LoraModels, TrainsOnlyItsAdapters) {
  for (const bool is_packed : {false, true}) {
    LoraNet net;
    if (is_packed) pack_blocks(net);
    const LoraModel lora(*net, {.r = 4, .lora_alpha = 8, .target_modules = {"up", "down"}});
    std::map<std::string, Tensor> before;
    for (const auto& item : net->named_parameters())
      before[item.key()] = mantissa::dequantize(base_weight(item.value())).detach().clone();
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
    const Tensor x = torch::randn({64, 6}), y = x.slice(1, 0, 3).sin();
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      const Tensor loss = torch::mse_loss(net(x), y);
      loss.backward();
      EXPECT_GT(torch::nn::utils::clip_grad_norm_(net->parameters(), 10.0), 0);
      optimizer.step();
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.6 * first);
    for (const auto& item : net->named_parameters()) {
      const bool changed =
          !at::equal(mantissa::dequantize(base_weight(item.value())).detach(), before.at(item.key()));
      EXPECT_EQ(changed, item.key().find("lora_") != std::string::npos) << item.key();
    }
  }
}

TEST_F(LoraModels, RankStabilizedScalingDividesByTheRoot) {
  const LoraConfig plain{.r = 16, .lora_alpha = 8};
  LoraConfig stabilized = plain;
  stabilized.use_rslora = true;
  EXPECT_EQ(plain.scaling_of("x"), 0.5);
  EXPECT_EQ(stabilized.scaling_of("x"), 2);
}

TEST_F(LoraModels, PatternsGiveLayersOtherRanksAndAlphas) {
  LoraNet net;
  const LoraConfig config{.r = 2,
                          .lora_alpha = 4,
                          .rank_pattern = {{"blocks.1.up", 5}, {"h.*d", 1}},
                          .alpha_pattern = {{"down", 3}}};
  const LoraModel lora(*net, config);
  const auto rank = [&](const std::string& layer) {
    return parameter(*net, layer + ".lora_A.default.weight").size(0);
  };
  EXPECT_EQ(rank("blocks.0.up"), 2);
  EXPECT_EQ(rank("blocks.1.up"), 5);
  EXPECT_EQ(rank("head"), 1);
  EXPECT_EQ(config.scaling_of("blocks.0.down"), 1.5);
  EXPECT_EQ(config.scaling_of("blocks.0.up"), 2);
}

TEST_F(LoraModels, ARankAboveThatOfAWeightIsWarnedOfOnce) {
  const auto warnings_of = [](const LoraConfig& config) {
    LoraNet net;
    const Warnings warnings;
    const LoraModel lora(*net, config);
    return warnings.texts;
  };
  EXPECT_THAT(warnings_of({.r = 7}),
              ElementsAre(AllOf(HasSubstr("r=7 is above 6"), HasSubstr("'blocks.0.up' [10, 6]"),
                                HasSubstr("and of 4 more layers"), HasSubstr("only costs memory"))));
  EXPECT_THAT(warnings_of({.r = 4}),
              ElementsAre(AllOf(HasSubstr("r=4 is above 3"), HasSubstr("'head' [3, 6];"))));
  EXPECT_THAT(warnings_of({.r = 4, .rank_pattern = {{"head", 3}}}), IsEmpty());
  EXPECT_THAT(warnings_of({.r = 6, .exclude_modules = {"head"}}), IsEmpty()) << "a full rank is allowed";
}

TEST_F(LoraModels, TargetsAreEndsOfNamesExpressionsOrAllLinearLayers) {
  const auto layers = [](const LoraConfig& config) {
    LoraNet net;
    return LoraModel(*net, config).layers();
  };
  EXPECT_THAT(layers({.target_modules = {"up", "head"}}), ElementsAre("blocks.0.up", "blocks.1.up", "head"));
  EXPECT_THAT(layers({.target_modules = {"0.up"}}), ElementsAre("blocks.0.up"));
  EXPECT_THAT(layers({.target_modules = "blocks\\.1\\..*"}), ElementsAre("blocks.1.up", "blocks.1.down"));
  EXPECT_THAT(layers({.exclude_modules = {"head", "1.up"}}),
              ElementsAre("blocks.0.up", "blocks.0.down", "blocks.1.down"));
  EXPECT_THAT(layers({.exclude_modules = "blocks.*"}), ElementsAre("head"));
}

TEST_F(LoraModels, TargetsThatFitNothingAreErrorsBeforeAnythingChanges) {
  LoraNet net;
  const auto error = [&](const LoraConfig& config) { return error_of([&] { LoraModel(*net, config); }); };
  EXPECT_THAT(error({.target_modules = {"up", "heat"}}),
              AllOf(HasSubstr("'heat'"), HasSubstr("mean 'head'")));
  EXPECT_THAT(error({.target_modules = {"p"}}),
              AllOf(HasSubstr("'p'"), HasSubstr("linear layers end in down, head, up")))
      << "an end begins after a dot";
  EXPECT_THAT(error({.exclude_modules = "all-linear"}), HasSubstr("that exclude_modules leaves"));
  EXPECT_THAT(error({.target_modules = "layers.*"}),
              AllOf(HasSubstr("layers.*"), HasSubstr("down, head, up")));
  EXPECT_THAT(error({.target_modules = {"norm"}}), AllOf(HasSubstr("'norm'"), HasSubstr("LayerNorm")));
  EXPECT_THAT(error({.target_modules = {"up"}, .exclude_modules = {"up"}}), HasSubstr("no linear layer"));
  EXPECT_THAT(error_of([] { ModuleNames("(up"); }), HasSubstr("regular expression"));
  EXPECT_THAT(error_of([] { ModuleNames(""); }), HasSubstr("empty"));
  EXPECT_THAT(error({.target_modules = ModuleNames()}), HasSubstr("target_modules"));
  torch::nn::Linear alone(2, 2);
  EXPECT_THAT(error_of([&] { LoraModel(*alone, {}); }),
              testing::EndsWith("torch::nn::Linear among its submodules"))
      << "there is nothing to choose from";
  expect_untouched(net);
}

TEST_F(LoraModels, SettingsOutOfRangeAreErrors) {
  LoraNet net;
  const auto error = [&](const LoraConfig& config) { return error_of([&] { LoraModel(*net, config); }); };
  EXPECT_THAT(error({.r = 0}), AllOf(HasSubstr("r must be 1"), HasSubstr("got 0")));
  EXPECT_THAT(error({.lora_alpha = INFINITY}), HasSubstr("lora_alpha must be finite"));
  EXPECT_THAT(error({.lora_dropout = 1}), HasSubstr("lora_dropout"));
  EXPECT_THAT(error({.lora_dropout = NAN}), HasSubstr("lora_dropout"));
  EXPECT_THAT(error({.rank_pattern = {{"up", 0}}}), HasSubstr("rank_pattern of 'up'"));
  EXPECT_THAT(error({.rank_pattern = {{"(", 1}}}), HasSubstr("rank_pattern has the key '('"));
  EXPECT_THAT(error({.alpha_pattern = {{"up", NAN}}}), HasSubstr("alpha_pattern of 'up'"));
  EXPECT_THAT(error_of([&] { LoraModel(*net, {}, "a.b"); }), HasSubstr("'a.b'"));
  EXPECT_THAT(error_of([&] { LoraModel(*net, {}, ""); }), HasSubstr("''"));
  expect_untouched(net);
}

TEST_F(LoraModels, LayersThatCannotHaveAnAdapterAreNamed) {
  LoraNet net;
  net->up(1).to(at::kDouble);
  EXPECT_THAT(error_of([&] { LoraModel(*net, {}); }), AllOf(HasSubstr("'blocks.1.up'"), HasSubstr("Double")));
  LoraNet meta;
  replace_weight(meta->up(1).weight, pack(meta->up(1).weight));  // a plain tensor cannot become a meta one
  replace_weight(meta->up(1).weight, torch::empty({10, 6}, at::kMeta));
  EXPECT_THAT(error_of([&] { LoraModel(*meta, {}); }), HasSubstr("meta device"));
  expect_untouched(net);
}

TEST_F(LoraModels, AWeightThatAnEmbeddingSharesGetsNoAdapter) {
  // As in a model whose output layer shares the table of its embedding.
  struct SharesImpl : torch::nn::Module {
    explicit SharesImpl(const Tensor& weight) { register_parameter("weight", weight); }
  };
  torch::nn::Linear fc(6, 6), head(6, 8);
  torch::nn::ModuleDict net;
  net->update(
      {{"fc", fc.ptr()}, {"head", head.ptr()}, {"table", std::make_shared<SharesImpl>(head->weight)}});
  EXPECT_THAT(LoraModel(*net, {}).layers(), ElementsAre("fc"));
  EXPECT_THAT(error_of([&] { LoraModel(*net, {.target_modules = {"head"}}); }),
              AllOf(HasSubstr("'head'"), HasSubstr("shared"), HasSubstr("exclude_modules")));
}

TEST_F(LoraModels, ATypedMemberThatIsNotTheParameterGetsNoAdapter) {
  torch::nn::Embedding table(8, 6);
  torch::nn::Linear fc(6, 6), head(torch::nn::LinearOptions(6, 8).bias(false));
  head->weight = table->weight;  // the module's list of parameters still has the old weight
  torch::nn::ModuleDict net;
  net->update({{"fc", fc.ptr()}, {"head", head.ptr()}, {"table", table.ptr()}});
  EXPECT_THAT(LoraModel(*net, {}).layers(), ElementsAre("fc"));
  EXPECT_THAT(error_of([&] { LoraModel(*net, {.target_modules = {"head"}}); }), HasSubstr("shared"));
}

TEST_F(LoraModels, AModuleThatIsRegisteredTwiceGetsOneAdapter) {
  torch::nn::Linear layer(6, 6);
  torch::nn::Sequential net(layer, torch::nn::Tanh(), layer);
  const LoraModel lora(*net, {.r = 2});
  EXPECT_THAT(lora.layers(), ElementsAre("0"));
  randomize(*net);
  const Tensor w = mantissa::dequantize(layer->weight);
  const Tensor expected = torch::linear(torch::tanh(torch::linear(x_, w, layer->bias)), w, layer->bias);
  EXPECT_TRUE(at::allclose(net->forward(x_), expected, 1e-5, 1e-5));
}

TEST_F(LoraModels, SeveralAdaptersAreSwitchedAndAdded) {
  LoraNet net;
  const Tensor plain = net(x_).detach();
  LoraModel lora(*net, {.r = 2, .target_modules = {"up"}}, "first");
  randomize(*net, "first");
  const Tensor first = net(x_).detach();
  lora.add_adapter("second", {.r = 3, .use_dora = true, .target_modules = {"up", "head"}});
  EXPECT_TRUE(at::equal(net(x_), first)) << "a new adapter is not active";
  randomize(*net, "second");
  EXPECT_TRUE(at::equal(net(x_), first));
  lora.set_adapter("second");
  const Tensor second = net(x_).detach();
  EXPECT_FALSE(at::allclose(second, first, 1e-3, 1e-3));
  for (const std::string& name : trained(*net)) EXPECT_THAT(name, HasSubstr(".second."));
  lora.set_adapters({"first", "second"});
  EXPECT_THAT(lora.active_adapters(), ElementsAre("first", "second"));
  const Tensor w = mantissa::dequantize(net->up(0).weight), both = net(x_).detach();
  lora.set_adapter("first");
  const Tensor with_first = mantissa::dequantize(net->up(0).weight);
  EXPECT_TRUE(at::equal(net(x_), first));
  lora.set_adapter("second");
  const Tensor with_second = mantissa::dequantize(net->up(0).weight);
  EXPECT_TRUE(at::equal(net(x_), second));
  EXPECT_TRUE(at::allclose(w, with_first + with_second - base_weight(net->up(0).weight), 1e-5, 1e-5));
  EXPECT_FALSE(at::allclose(both, second, 1e-3, 1e-3));
  lora.disable_adapters();
  EXPECT_TRUE(at::equal(net(x_), plain));
  EXPECT_THAT(trained(*net), IsEmpty());
  EXPECT_FALSE(is_packed(net->up(0).weight)) << "a layer without active adapters costs nothing";
  lora.enable_adapters();
  EXPECT_TRUE(at::equal(net(x_), second));
}

TEST_F(LoraModels, AnAdapterThatIsNotActiveStaysAsItIs) {
  LoraNet net;
  LoraModel lora(*net, {.r = 2}, "first");
  lora.add_adapter("second", {.r = 2});
  randomize(*net);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.1));
  const auto step = [&] {
    optimizer.zero_grad(/*set_to_none=*/false);
    net(x_).square().mean().backward();
    optimizer.step();
  };
  step();
  const Tensor factor = parameter(*net, "head.lora_B.first.weight");
  const Tensor before = factor.detach().clone();
  lora.set_adapter("second");
  for (int i = 0; i < 3; ++i) step();
  EXPECT_TRUE(at::equal(factor, before));
  lora.set_adapter("first");
  step();
  EXPECT_FALSE(at::equal(factor, before));
  net(x_).square().mean().backward();
  const Tensor gradient = factor.grad().clone();
  lora.disable_adapters();
  lora.enable_adapters();
  EXPECT_TRUE(at::equal(factor.grad(), gradient)) << "a pause between micro-batches loses nothing";
}

/// Doubles the product, on behalf of a mode or of the user.
struct TwiceRule final : WeightRule {
  explicit TwiceRule(bool of_mode) : of_mode(of_mode) {}
  std::string description() const override { return "twice"; }
  Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) const override {
    const Tensor product = 2 * at::matmul(x, weight.t());
    return bias.defined() ? product + bias : product;
  }
  WeightRulePtr for_copy() const override { return std::make_shared<TwiceRule>(of_mode); }
  bool belongs_to_mode() const override { return of_mode; }
  const bool of_mode;
};

TEST_F(LoraModels, TheRuleOfABaseStays) {
  for (const bool of_mode : {true, false}) {
    LoraNet net;
    const auto rule = std::make_shared<TwiceRule>(of_mode);
    mark_weight(net->head->weight, rule);
    const Tensor before = net->head(x_).detach();
    testing::internal::CaptureStderr();
    LoraModel lora(*net, {.r = 2, .target_modules = {"head"}});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_TRUE(at::equal(net->head(x_), before)) << "B is zero";
    randomize(*net);
    const Tensor added =
        4 * x_.mm(parameter(*net, "head.lora_A.default.weight").t())
                .mm(parameter(*net, "head.lora_B.default.weight").t());  // lora_alpha / r = 4
    EXPECT_TRUE(at::allclose(net->head(x_), before + added, 1e-5, 1e-5));
    net->to(at::kBFloat16);
    EXPECT_EQ(weight_rule(base_weight(net->head->weight)), rule) << "after a cast";
    net->to(at::kFloat);
    lora.merge_adapter();
    EXPECT_EQ(weight_rule(net->head->weight), rule) << "merged";
    lora.unmerge_adapter();
    EXPECT_EQ(weight_rule(base_weight(net->head->weight)), rule);
    lora.merge_adapter();
    unmark_weight(net->head->weight);  // as another mode does it
    lora.unmerge_adapter();
    EXPECT_FALSE(is_marked(base_weight(net->head->weight)));
    lora.unload();
    EXPECT_FALSE(is_marked(net->head->weight));
  }
}

TEST_F(LoraModels, AnAdapterIsDeleted) {
  LoraNet net;
  LoraModel lora(*net, {.target_modules = {"up"}}, "first");
  lora.add_adapter("second", {.target_modules = {"head"}});
  randomize(*net, "first");
  const Tensor first = net(x_).detach();
  lora.delete_adapter("second");
  EXPECT_TRUE(at::equal(net(x_), first));
  EXPECT_THAT(lora.adapters(), ElementsAre("first"));
  EXPECT_FALSE(net->head->named_children().contains("lora_A"));
  for (const auto& item : net->named_parameters()) EXPECT_EQ(item.key().find("second"), std::string::npos);
  lora.delete_adapter("first");
  expect_untouched(net);
  lora.add_adapter("third", {});
  lora.set_adapter("third");
  EXPECT_TRUE(is_packed(net->head->weight));
}

TEST_F(LoraModels, UnloadRestoresTheModel) {
  LoraNet net;
  net->norm->bias.set_requires_grad(false);
  const Tensor plain = net(x_).detach();
  LoraModel lora(*net, {.use_dora = true});
  randomize(*net);
  lora.unload();
  EXPECT_TRUE(at::equal(net(x_), plain));
  EXPECT_FALSE(net->norm->bias.requires_grad()) << "it was frozen before";
  net->norm->bias.set_requires_grad(true);
  expect_untouched(net);
  EXPECT_THAT(error_of([&] { lora.set_adapter("default"); }), HasSubstr("it has none"));
}

TEST_F(LoraModels, UnknownAndRepeatedNamesAreErrors) {
  LoraNet net;
  LoraModel lora(*net, {}, "style");
  EXPECT_THAT(error_of([&] { lora.set_adapter("stile"); }),
              AllOf(HasSubstr("'stile'"), HasSubstr("'style'")));
  EXPECT_THAT(error_of([&] { lora.add_adapter("style", {}); }), HasSubstr("already"));
  EXPECT_THAT(error_of([&] { lora.delete_adapter("x"); }), HasSubstr("it has style"));
  EXPECT_THAT(error_of([&] { lora.set_adapters({"style", "style"}); }), HasSubstr("each once"));
  EXPECT_THAT(error_of([&] { lora.set_adapters({}); }), HasSubstr("at least one"));
  EXPECT_THAT(error_of([&] { LoraModel(*net, {}, "other"); }), HasSubstr("another LoraModel"));
  EXPECT_THAT(lora.active_adapters(), ElementsAre("style"));
}

TEST_F(LoraModels, TheModelKeepsItsAdaptersWithoutTheObject) {
  LoraNet net;
  Tensor with;
  {
    const LoraModel lora(*net, {});
    randomize(*net);
    with = net(x_).detach();
  }
  EXPECT_TRUE(at::equal(net(x_), with));
}

TEST_F(LoraModels, TrainAndEvalReachAdaptersThatComeLater) {
  LoraNet net;
  net->eval();
  const LoraModel lora(*net, {.lora_dropout = 0.5});
  randomize(*net);
  EXPECT_TRUE(at::equal(net(x_), net(x_)));
  net->train();
  EXPECT_FALSE(at::equal(net(x_), net(x_)));
}

TEST_F(LoraModels, GradientsAccumulate) {
  LoraNet net;
  const LoraModel lora(*net, {});
  randomize(*net);
  const Tensor a = parameter(*net, "head.lora_A.default.weight");
  net(x_).sum().backward();
  const Tensor once = a.grad().clone();
  net(x_).sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), 2 * once));
}

}  // namespace
}  // namespace mantissa::lora_model_test
