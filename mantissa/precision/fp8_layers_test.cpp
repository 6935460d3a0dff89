#include "mantissa/precision/fp8_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include <torch/torch.h>

#include "mantissa/core/suggest.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/precision/fp8.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/linear_weights.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::fp8_layers_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

/// Four linear layers, between an embedding and a norm.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_module("table", torch::nn::Embedding(16, 8));
    in = register_module("in", torch::nn::Linear(8, 8));
    blocks = register_module("blocks",
                             torch::nn::Sequential(torch::nn::Linear(8, 12),
                                                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})),
                                                   torch::nn::Linear(12, 8)));
    head = register_module("head", torch::nn::Linear(8, 16));
  }
  at::Tensor forward(const at::Tensor& x) { return head(blocks->forward(in(x))); }
  at::Tensor weight(const std::string& name) const { return named_parameters()[name + ".weight"]; }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear in{nullptr}, head{nullptr};
  torch::nn::Sequential blocks{nullptr};
};
TORCH_MODULE(Net);

std::unique_ptr<Precision> fp8(const PrecisionOptions& options = {}, const std::string& mode = "fp8-mixed") {
  return make_precision(mode, at::kCPU, options);
}

/// Returns the reason of each layer that computes in high precision, and "FP8" for the others.
std::vector<std::pair<std::string, std::string>> reasons(const Precision& mode) {
  std::vector<std::pair<std::string, std::string>> reasons;
  for (const LayerReport& row : mode.layer_report())
    reasons.emplace_back(row.name, row.products ? "FP8" + row.reason : row.reason);
  return reasons;
}

TEST(Fp8Layers, MarksAllButTheFirstAndTheLastLayer) {
  Net net;
  const at::Tensor before = net->weight("blocks.0").detach().clone();
  const auto mode = fp8();
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode), ElementsAre(Pair("in", HasSubstr("it is the first layer; fp8_first_and_last")),
                                          Pair("blocks.0", "FP8"), Pair("blocks.2", "FP8"),
                                          Pair("head", HasSubstr("it is the last layer"))));
  EXPECT_EQ(mode->layer_report()[1].sizes, (std::vector<int64_t>{12, 8}));
  EXPECT_TRUE(is_marked(net->weight("blocks.0")) && is_marked(net->weight("blocks.2")));
  EXPECT_FALSE(is_marked(net->in->weight) || is_marked(net->head->weight) || is_marked(net->table->weight) ||
               is_marked(net->weight("blocks.1")));
  EXPECT_TRUE(at::equal(net->weight("blocks.0"), before));
  EXPECT_EQ(mode->parameter_name(net->in->weight), "in.weight");
}

TEST(Fp8Layers, AnOptionComputesTheFirstAndTheLastLayerInFp8) {
  Net all, none;
  const auto mode = fp8({.fp8_first_and_last = true});
  mode->convert_module(*all);
  for (const auto& [name, reason] : reasons(*mode)) EXPECT_EQ(reason, "FP8") << name;
  EXPECT_EQ(reasons(*mode).size(), 4);
  const auto engine = fp8({.fp8_first_and_last = false}, "transformer-engine");
  engine->convert_module(*none);
  EXPECT_FALSE(is_marked(none->in->weight) || is_marked(none->head->weight));
}

TEST(Fp8Layers, F8_38_TransformerEngineConvertsEveryShape) {
  torch::nn::Sequential net(torch::nn::Linear(16, 48),
                            torch::nn::Linear(torch::nn::LinearOptions(48, 1).bias(false)),
                            torch::nn::Linear(1, 3), torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
  const auto mode = fp8({}, "transformer-engine");
  const Warnings warnings;
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode), ElementsAre(Pair("0", "FP8"), Pair("1", "FP8"), Pair("2", "FP8")));
  EXPECT_THAT(warnings.texts, IsEmpty()) << "any shape is padded inside";
  EXPECT_EQ(net->named_parameters().size(), 7) << "the layer without a bias has none";
}

TEST(Fp8Layers, IgnoredLayersAreChosenByPrefix) {
  Net net;
  const auto mode = fp8({.ignore_modules = {"blocks.0", "hed"}, .fp8_first_and_last = true});
  const Warnings warnings;
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode), ElementsAre(Pair("in", "FP8"), Pair("blocks.0", "ignore_modules names it"),
                                          Pair("blocks.2", "FP8"), Pair("head", "FP8")));
  EXPECT_THAT(warnings.texts,
              ElementsAre(AllOf(HasSubstr("'hed' matches no submodule"), HasSubstr("'head'"))));
}

TEST(Fp8Layers, ATiedWeightIsOneLayer) {
  torch::nn::Linear a(4, 4), b(4, 4), c(4, 4);
  b->weight = a->weight;
  torch::nn::Sequential net(a, b, c);
  const auto mode = fp8({.fp8_first_and_last = true});
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode), ElementsAre(Pair("0", "FP8"), Pair("2", "FP8")));
  torch::nn::Linear d(4, 4), e(4, 4);
  e->weight = d->weight;
  torch::nn::Sequential tied(d, e);
  fp8({.ignore_modules = {"1"}, .fp8_first_and_last = true})->convert_module(*tied);
  EXPECT_FALSE(is_marked(d->weight)) << "an ignored layer shares it";
}

/// A layer with two weights of its own.
struct TwoWeightsImpl : torch::nn::Module, HasLinearWeights {
  TwoWeightsImpl() {
    fc1 = register_parameter("fc1_weight", torch::randn({8, 4}));
    fc2 = register_parameter("fc2_weight", torch::randn({4, 8}));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(torch::linear(x, fc1), fc2); }
  std::vector<std::string> linear_weights() const override { return {"fc1_weight", "fc2_weight"}; }
  at::Tensor fc1, fc2;
};
TORCH_MODULE(TwoWeights);

TEST(Fp8Layers, EachWeightOfALayerHasARowAndAState) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), TwoWeights(), torch::nn::Linear(4, 4));
  const auto mode = fp8();
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode), ElementsAre(Pair("0", HasSubstr("first")), Pair("1.fc1_weight", "FP8"),
                                          Pair("1.fc2_weight", "FP8"), Pair("2", HasSubstr("last"))));
  const StateDict saved = mode->state_dict();
  EXPECT_THAT(keys_of(StateReader(saved).at("fp8_state").at("layers").to_dict()),
              ElementsAre("1.fc1_weight", "1.fc2_weight"));
}

TEST(Fp8Layers, ModulesThatCannotBeConvertedAreRefusedUnchanged) {
  torch::nn::Conv2d conv(1, 2, 3);
  EXPECT_THAT(error_of([&] { fp8()->convert_module(*conv); }),
              AllOf(HasSubstr("'fp8-mixed'"), HasSubstr("no torch::nn::Linear")));
  const auto refused = [](const auto& change) {
    Net net;
    change(*net);
    const std::string message = error_of([&] { fp8()->convert_module(*net); });
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(is_marked(parameter));
    return message;
  };
  EXPECT_THAT(refused([](NetImpl& net) { net.blocks->to(at::kDouble); }),
              AllOf(HasSubstr("weight of 'blocks.0' is Double"), HasSubstr("ignore_modules")));
  Net cast;
  cast->to(at::kDouble);
  EXPECT_NO_THROW(fp8({}, "transformer-engine")->convert_module(*cast));
  const auto compute = [](NetImpl& net) {
    auto* const layer = net.blocks[2]->as<torch::nn::Linear>();
    layer->weight = layer->weight * 1;
  };
  EXPECT_THAT(refused(compute), HasSubstr("weight of 'blocks.2' is computed by autograd"));
  torch::nn::Linear plain(2, 2);
  EXPECT_NO_THROW(fp8({.ignore_modules = {"0"}})->convert_module(*torch::nn::Sequential(plain)));
}

TEST(Fp8Layers, SaysThatNoLayerComputesInFp8) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  const Warnings warnings;
  fp8()->convert_module(*net);
  EXPECT_THAT(warnings.texts, ElementsAre(AllOf(HasSubstr("no layer of"), HasSubstr("'0' does not"),
                                                HasSubstr("fp8_first_and_last"))));
}

/// A rule of the user's own.
class PlainRule final : public WeightRule {
 public:
  std::string description() const override { return "plain products"; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override {
    return at::linear(x, weight, bias) + 0;
  }
  WeightRulePtr for_copy() const override { return std::make_shared<PlainRule>(); }
};

TEST(Fp8Layers, WeightsWithAnArithmeticOfTheirOwnKeepIt) {
  Net net;
  mark_weight(net->weight("blocks.0"), std::make_shared<PlainRule>());
  const auto mode = fp8();
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode)[1].second, HasSubstr("of its own: plain products"));
  EXPECT_EQ(fp8_state_of(net->weight("blocks.0")), nullptr);
  Net frozen;
  make_precision("nf4", at::kCPU)->convert_module(*frozen);
  const auto none = fp8();
  none->convert_module(*frozen);
  for (const auto& [name, reason] : reasons(*none))
    EXPECT_THAT(reason, HasSubstr("its weight is frozen")) << name;
}

TEST(Fp8Layers, F8_39_AModelWithFp8LayersIsLeftAlone) {
  Net net;
  const auto state = std::make_shared<Fp8LinearState>(Float8CurrentScaling());
  mark_weight(net->weight("blocks.0"), std::make_shared<Fp8TrainingRule>(state));
  const auto mode = fp8({.fp8_first_and_last = true}, "transformer-engine");
  mode->convert_module(*net);
  EXPECT_THAT(reasons(*mode), ElementsAre(Pair("in", HasSubstr("the model has FP8 layers")),
                                          Pair("blocks.0", "FP8it was an FP8 layer before"),
                                          Pair("blocks.2", HasSubstr("the model has FP8 layers")),
                                          Pair("head", HasSubstr("the model has FP8 layers"))));
  EXPECT_EQ(fp8_state_of(net->weight("blocks.0")), state);
  EXPECT_FALSE(is_marked(net->in->weight));
  EXPECT_EQ(net->in->weight.scalar_type(), at::kBFloat16) << "the whole model has the dtype";
  const StateDict saved = mode->state_dict();
  EXPECT_EQ(StateReader(saved).at("fp8_state").at("layers").to_dict().size(), 1) << "its state is saved";
}

TEST(Fp8Layers, AModuleThatIsConvertedAgainKeepsItsScales) {
  Net net;
  const auto mode = fp8();
  mode->convert_module(*net);
  const auto state = fp8_state_of(net->weight("blocks.0"));
  state->forward.scale.fill_(3);
  mode->convert_module(*net);
  EXPECT_EQ(fp8_state_of(net->weight("blocks.0")), state);
  EXPECT_EQ(mode->layer_report().size(), 4);
  make_precision("bf16-mixed", at::kCPU)->convert_module(*net);
  EXPECT_FALSE(is_marked(net->weight("blocks.0"))) << "another mode ends it";
}

TEST(Fp8Layers, LayersOfTwoModulesHaveNamesOfTheirOwn) {
  Net generator, discriminator;
  const auto mode = fp8({.recipe = NVFP4BlockScaling()});
  torch::manual_seed(5);
  mode->convert_module(*generator);
  mode->convert_module(*discriminator);
  EXPECT_EQ(mode->layer_report().size(), 8);
  const StateDict saved = snapshot(mode->state_dict());
  const StateReader layers = StateReader(saved).at("fp8_state").at("layers");
  EXPECT_THAT(keys_of(layers.to_dict()), ElementsAre("blocks.0", "blocks.0#2", "blocks.2", "blocks.2#2"));
  EXPECT_NE(layers.at("blocks.0").at("seed").to_int(), layers.at("blocks.0#2").at("seed").to_int());
  generator = Net(nullptr);
  EXPECT_EQ(mode->layer_report().size(), 4) << "models are not kept alive";
}

TEST(Fp8Layers, NoSeedRepeatsAfterAModelIsGone) {
  const auto mode = fp8({.recipe = NVFP4BlockScaling()});
  Net first, second, third;
  mode->convert_module(*first);
  mode->convert_module(*second);
  first = Net(nullptr);
  mode->convert_module(*third);
  std::set<uint64_t> seeds;
  for (const Net& net : {second, third})
    for (const char* const name : {"blocks.0", "blocks.2"})
      seeds.insert(fp8_state_of(net->weight(name))->seed());
  EXPECT_EQ(seeds.size(), 4);
}

// The seeds decide the random numbers of a run, so a run with the same manual seed has them again.
TEST(Fp8Layers, SeedsCountUpFromThatOfTheGenerator) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  Net net;
  const auto mode = fp8({.recipe = NVFP4BlockScaling()});
  torch::manual_seed(5);
  mode->convert_module(*net);
  EXPECT_EQ(fp8_state_of(net->weight("blocks.0"))->seed(), 5 + kStep);
  EXPECT_EQ(fp8_state_of(net->weight("blocks.2"))->seed(), 5 + 2 * kStep);
}

TEST(Fp8Layers, OnlyLayersThatComputeInFp8NeedADtypeThatFp8Has) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    Net net;
    net->blocks->to(dtype);
    EXPECT_NO_THROW(fp8()->convert_module(*net)) << dtype;
    EXPECT_TRUE(is_marked(net->weight("blocks.0")));
  }
  Net net;
  net->in->to(at::kDouble);  // the first layer
  net->blocks[2]->to(at::kDouble);
  net->head->weight = net->head->weight * 1;  // the last layer, computed by autograd
  EXPECT_NO_THROW(fp8({.ignore_modules = {"blocks.2"}})->convert_module(*net));
  EXPECT_TRUE(is_marked(net->weight("blocks.0")));
  Net users;
  users->blocks[0]->to(at::kDouble);
  mark_weight(users->weight("blocks.0"),
              std::make_shared<Fp8TrainingRule>(std::make_shared<Fp8LinearState>(Float8CurrentScaling())));
  EXPECT_NO_THROW(fp8()->convert_module(*users)) << "the user has decided about this layer";
}

TEST(Fp8Layers, AUsersLayerKeepsItsRuleInEveryMode) {
  Net net;
  const auto state = std::make_shared<Fp8LinearState>(Float8CurrentScaling());
  mark_weight(net->weight("blocks.0"), std::make_shared<Fp8TrainingRule>(state));
  fp8({.fp8_native = Fp8Native::kOff})->convert_module(*net);
  EXPECT_EQ(state->native(), Fp8Native::kAuto);
  EXPECT_FALSE(weight_rule(net->weight("blocks.0"))->belongs_to_mode());
  make_precision("bf16-mixed", at::kCPU)->convert_module(*net);
  EXPECT_EQ(fp8_state_of(net->weight("blocks.0")), state);
}

TEST(Fp8Layers, AModesLayersHaveItsChoiceOfProducts) {
  Net net;
  fp8({.fp8_native = Fp8Native::kOff})->convert_module(*net);
  EXPECT_EQ(fp8_state_of(net->weight("blocks.0"))->native(), Fp8Native::kOff);
}

// Without a mode, nothing removes the marks between two conversions.
TEST(Fp8Layers, MarksOfTheirOwnAreNoLayersOfTheUser) {
  Net net;
  Fp8Layers layers("test", {});
  for (int i = 0; i < 2; ++i) layers.convert(*net);
  ASSERT_EQ(layers.report().size(), 4);
  EXPECT_EQ(layers.report()[1].reason, "");
  EXPECT_TRUE(weight_rule(net->weight("blocks.0"))->belongs_to_mode());
  net->blocks->to(at::kDouble);
  EXPECT_THAT(error_of([&] { layers.check(*net, /*is_cast=*/false); }),
              HasSubstr("test: the weight of 'blocks.0' is Double"));
  EXPECT_NO_THROW(layers.check(*net, /*is_cast=*/true));
}

TEST(Fp8Layers, AModuleWithoutLayersIsConvertedInSilence) {
  torch::nn::ReLU relu;
  Fp8Layers layers("test", {});
  const Warnings warnings;
  layers.convert(*relu);
  EXPECT_THAT(warnings.texts, IsEmpty());
  EXPECT_THAT(layers.report(), IsEmpty());
}

TEST(Fp8Layers, F8_50_RequiredNativeProductsAreRefusedBeforeAnyWork) {
  for (const char* const name : {"fp8-mixed", "transformer-engine", "transformer-engine-float16"})
    EXPECT_THAT(error_of([&] { make_precision(name, at::kCPU, {.fp8_native = Fp8Native::kRequired}); }),
                AllOf(HasSubstr(c10::str("precision '", name, "': fp8_native is required, but cpu cannot")),
                      HasSubstr("choose fp8_native auto or off to emulate them")));
  EXPECT_THAT(error_of([] { make_precision("bf16-mixed", at::kCPU, {.fp8_native = Fp8Native::kOff}); }),
              HasSubstr("with fp8_native off: only fp8-mixed"));
  EXPECT_THAT(error_of([] { TransformerEngine(at::kFloat, at::kCPU); }), HasSubstr("got Float"));
}

TEST(Fp8Layers, ANoteSaysWhoMultiplies) {
  for (const Fp8Native native : {Fp8Native::kAuto, Fp8Native::kOff})
    EXPECT_EQ(make_precision("fp8-mixed", at::kCPU, {.fp8_native = native})->layer_note(),
              "FP8 products (DelayedScaling) are emulated on cpu: FP8 codes are multiplied exactly and "
              "summed in float32");
}

TEST(Fp8Layers, CudaModesExistOnlyWhereThereIsAGpu) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(error_of([] { make_precision("fp8-mixed", at::kCUDA); }), HasSubstr(why_no_cuda()));
}

}  // namespace
}  // namespace mantissa::fp8_layers_test
