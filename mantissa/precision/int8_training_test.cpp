#include "mantissa/precision/int8_training.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <sstream>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adam.h"
#include "mantissa/optim/ema.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/precision/registry.h"
#include "mantissa/quant/int8_training.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::int8_training_mode_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<Precision> int8_training(const PrecisionOptions& options = {}) {
  return make_precision("int8-training", at::kCPU, options);
}

std::shared_ptr<const Int8TrainingRule> rule_of(const at::Tensor& weight) {
  return std::dynamic_pointer_cast<const Int8TrainingRule>(weight_rule(weight));
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    table = register_module("table", torch::nn::Embedding(16, 8));
    lm_head = register_module("lm_head", torch::nn::Linear(8, 16));
    lm_head2 = register_module("lm_head2", torch::nn::Linear(8, 16));
    blocks = register_module("blocks",
                             torch::nn::Sequential(torch::nn::Linear(8, 8),
                                                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({8}))));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear lm_head{nullptr}, lm_head2{nullptr};
  torch::nn::Sequential blocks{nullptr};
};
TORCH_MODULE(Net);

TEST(Int8TrainingMode, Q53_MarksTheWeightsOfLinearLayersAndChangesNoValue) {
  Net net;
  const auto before = net->lm_head->weight.detach().clone();
  const auto mode = int8_training();
  mode->convert_module(*net);
  EXPECT_EQ(rule_of(net->lm_head->weight)->threshold(), 6);
  EXPECT_TRUE(is_marked(net->named_parameters()["blocks.0.weight"]));
  EXPECT_FALSE(is_marked(net->table->weight) || is_marked(net->named_parameters()["blocks.1.weight"]) ||
               is_marked(net->lm_head->bias));
  EXPECT_TRUE(at::equal(net->lm_head->weight, before));
  EXPECT_TRUE(net->lm_head->weight.requires_grad());
  EXPECT_EQ(mode->parameter_name(net->lm_head->weight), "lm_head.weight");
  EXPECT_TRUE(mode->traits().scales_loss);
}

TEST(Int8TrainingMode, Q55_IgnoredLayersAreChosenByPrefix) {
  Net net;
  int8_training({.ignore_modules = {"lm_head", "blocks.1"}})->convert_module(*net);
  EXPECT_FALSE(is_marked(net->lm_head->weight) || is_marked(net->lm_head2->weight));
  EXPECT_TRUE(is_marked(net->named_parameters()["blocks.0.weight"]));
  Net tied;
  tied->lm_head2->weight = tied->lm_head->weight;
  int8_training({.ignore_modules = {"lm_head2"}})->convert_module(*tied);
  EXPECT_FALSE(is_marked(tied->lm_head->weight)) << "an ignored layer shares it";
}

TEST(Int8TrainingMode, Q54_OtherDtypesThanFloat16AreRefused) {
  EXPECT_THAT(error_of([] { int8_training({.dtype = at::kBFloat16}); }),
              AllOf(HasSubstr("'int8-training'"), HasSubstr("bfloat16"), HasSubstr("float16")));
  EXPECT_NO_THROW(int8_training({.dtype = at::kHalf}));
}

TEST(Int8TrainingMode, OptionsReachTheRule) {
  torch::nn::Linear layer(4, 4);
  int8_training({.llm_int8_threshold = 0})->convert_module(*layer);
  EXPECT_EQ(rule_of(layer->weight)->threshold(), 0);
  EXPECT_THAT(error_of([] { int8_training({.blocksize = 64}); }), HasSubstr("blocksize 64"));
  EXPECT_THAT(error_of([] { int8_training({.quantize_embeddings = true}); }),
              HasSubstr("quantize_embeddings"));
  EXPECT_THAT(error_of([] { int8_training({.master_weights = true}); }), HasSubstr("master_weights"));
  EXPECT_EQ(int8_training({.loss_scale = "128"})->loss_scale().item<float>(), 128);
  EXPECT_FALSE(int8_training({.loss_scale = "none"})->loss_scale().defined());
}

TEST(Int8TrainingMode, Q56_AModuleWithoutALinearIsRefused) {
  torch::nn::Conv2d conv(1, 2, 3);
  EXPECT_THAT(error_of([&] { int8_training()->convert_module(*conv); }),
              AllOf(HasSubstr("'int8-training'"), HasSubstr("no torch::nn::Linear")));
  torch::nn::Linear ignored(2, 2);
  torch::nn::Sequential net(ignored);
  EXPECT_NO_THROW(int8_training({.ignore_modules = {"0"}})->convert_module(*net)) << "it has one";
}

TEST(Int8TrainingMode, WeightsThatCannotBeQuantizedAreNamedAndNothingIsMarked) {
  const auto refused = [](const auto& change) {
    Net net;
    {
      const torch::NoGradGuard no_grad;
      change(*net);
    }
    const std::string message = error_of([&] { int8_training()->convert_module(*net); });
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(is_marked(parameter));
    return message;
  };
  EXPECT_THAT(refused([](NetImpl& net) { net.lm_head2->weight[0][1] = NAN; }),
              HasSubstr("'lm_head2.weight' has 1 values that are inf or nan"));
  EXPECT_THAT(refused([](NetImpl& net) { net.lm_head2->weight[0][1] = 1e5; }),
              HasSubstr("'lm_head2.weight' has values that float16 cannot hold"));
  EXPECT_THAT(refused([](NetImpl& net) { net.lm_head2->to(at::kDouble); }),
              HasSubstr("'lm_head2.weight' has dtype Double"));
}

TEST(Int8TrainingMode, AForwardPassIsInHalfPrecisionAndInt8) {
  torch::manual_seed(0);
  torch::nn::Linear layer(16, 4);
  const auto mode = int8_training();
  mode->convert_module(*layer);
  const at::Tensor x = torch::randn({5, 16});
  at::Tensor y;
  {
    const Scope scope = mode->forward_context();
    y = layer(mode->convert_input(x));
  }
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_EQ(mode->convert_output(y).scalar_type(), at::kFloat);
  EXPECT_EQ(rule_of(layer->weight)->quantizations(), 1);
  const at::Tensor exact = x.mm((layer->weight + 0).t()) + layer->bias;
  const double error = (y.to(at::kFloat) - exact).abs().max().item<double>();
  EXPECT_GT(error, 1e-4) << "8 bits";
  EXPECT_LT(error, 0.05);
}

/// What some steps of a network make of a noisy task.
template <typename MakeOptimizer>
double final_loss(const std::string& mode_name, const MakeOptimizer& make_optimizer, int steps = 150) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::GELU(), torch::nn::Linear(64, 64),
                            torch::nn::GELU(), torch::nn::Linear(64, 10));
  const at::Tensor x = torch::randn({512, 32});
  const at::Tensor y = (x.mm(torch::randn({32, 10})) + 8 * torch::randn({512, 10})).argmax(1);
  const auto mode = make_precision(mode_name, at::kCPU);
  mode->convert_module(*net);
  const auto optimizer = make_optimizer(net->parameters());
  mode->setup_optimizer(*optimizer);
  double loss_now = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = torch::cross_entropy_loss(net->forward(mode->convert_input(x)), y);
    }
    mode->backward(loss);
    mode->clip_gradients(*optimizer, 1.0);
    mode->optimizer_step(*optimizer);
    loss_now = loss.item<double>();
  }
  return loss_now;
}

TEST(Int8TrainingMode, ReachesTheLossOfFloat32) {
  const auto adamw = [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(3e-3));
  };
  const double expected = final_loss("32-true", adamw), got = final_loss("int8-training", adamw);
  EXPECT_LT(expected, final_loss("32-true", adamw, 5) * 0.8) << "it learns";
  EXPECT_LT(std::abs(got - expected), 0.02 * expected) << got << ", float32: " << expected;
}

TEST(Int8TrainingMode, FusedAndEightBitOptimizersTrainIt) {
  const auto check = [](const char* name, const auto& make) {
    const double first = final_loss("int8-training", make, 1), last = final_loss("int8-training", make, 60);
    EXPECT_LT(last, 0.9 * first) << name;
  };
  check("FusedAdam", [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<FusedAdam>(parameters, AdamOptions(3e-3));
  });
  check("Adam8bit", [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Adam8bit>(parameters, AdamOptions(3e-3));
  });
}

TEST(Int8TrainingMode, GradientsThatOverflowSkipTheStep) {
  torch::nn::Linear layer(8, 4);
  const auto mode = int8_training({.init_scale = 65536});
  mode->convert_module(*layer);
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  const at::Tensor before = (layer->weight + 0).detach();
  at::Tensor loss;
  {
    const Scope scope = mode->forward_context();
    loss = (layer(torch::ones({2, 8})).to(at::kFloat) * 1e4).sum();
  }
  mode->backward(loss);
  EXPECT_FALSE(layer->weight.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(mode->optimizer_step(optimizer).skipped());
  EXPECT_TRUE(at::equal(layer->weight, before));
}

TEST(Int8TrainingMode, FilesClonesAndAveragesAreThoseOfAnOrdinaryModel) {
  Net net;
  int8_training()->convert_module(*net);
  std::stringstream file;
  torch::save(net, file);
  Net plain;
  torch::load(plain, file);
  EXPECT_TRUE(at::equal(plain->lm_head->weight, net->lm_head->weight + 0));
  EXPECT_FALSE(is_marked(plain->lm_head->weight));
  ExponentialMovingAverage average(*net, {.decay = 0.5});
  average.update();
  {
    const torch::NoGradGuard no_grad;
    net->lm_head->weight.add_(1);
  }
  average.update();
  {
    const auto scope = average.average_weights();
    EXPECT_TRUE(is_marked(net->lm_head->weight));
    EXPECT_TRUE(at::allclose(net->lm_head->weight, plain->lm_head->weight + 0.5));
  }
  EXPECT_TRUE(is_marked(net->lm_head->weight));
  EXPECT_TRUE(at::allclose(net->lm_head->weight, plain->lm_head->weight + 1));
}

TEST(Int8TrainingMode, EndsWhenAnotherModeConvertsTheModule) {
  Net net;
  const at::Tensor x = torch::randn({4, 8}), before = net->lm_head(x);
  int8_training()->convert_module(*net);
  EXPECT_FALSE(at::equal(net->lm_head(x), before));
  make_precision("32-true", at::kCPU)->convert_module(*net);
  EXPECT_FALSE(is_marked(net->lm_head->weight));
  EXPECT_TRUE(at::equal(net->lm_head(x), before));
}

/// A rule that computes plain products, of a mode or of the user.
class PlainRule final : public WeightRule {
 public:
  explicit PlainRule(bool belongs_to_mode) : belongs_to_mode_(belongs_to_mode) {}
  std::string description() const override { return "plain products"; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override {
    return at::linear(x, weight, bias) + 0;
  }
  WeightRulePtr for_copy() const override { return std::make_shared<PlainRule>(belongs_to_mode_); }
  bool belongs_to_mode() const override { return belongs_to_mode_; }

 private:
  bool belongs_to_mode_;
};

TEST(Int8TrainingMode, AnotherModeEndsTheRulesOfModesAndKeepsTheUsers) {
  Net net;
  mark_weight(net->lm_head->weight, std::make_shared<PlainRule>(/*belongs_to_mode=*/true));
  mark_weight(net->lm_head2->weight, std::make_shared<PlainRule>(/*belongs_to_mode=*/false));
  make_precision("bf16-mixed", at::kCPU)->convert_module(*net);
  EXPECT_FALSE(is_marked(net->lm_head->weight));
  EXPECT_TRUE(is_marked(net->lm_head2->weight));
}

TEST(Int8TrainingMode, UnmarksLayersThatAreIgnoredLater) {
  Net net;
  int8_training()->convert_module(*net);
  int8_training({.ignore_modules = {{"lm_head2"}}})->convert_module(*net);
  EXPECT_TRUE(is_marked(net->lm_head->weight));
  EXPECT_FALSE(is_marked(net->lm_head2->weight));
}

TEST(Int8TrainingMode, ScalesTheLossUnlessItsScalerIsDisabled) {
  const Int8Training by_default(at::kCPU, {});
  EXPECT_TRUE(by_default.traits().scales_loss);
  EXPECT_EQ(by_default.loss_scale().item<float>(), 65536);
  auto off = std::make_unique<GradScaler>(at::kCPU, GradScalerOptions{.enabled = false});
  EXPECT_FALSE(Int8Training(at::kCPU, {.scaler = std::move(off)}).traits().scales_loss);
}

TEST(Int8TrainingMode, AWeightThatAutogradComputedIsRefused) {
  torch::nn::Linear first(4, 4), second(4, 4);
  second->weight = second->weight * 1;
  torch::nn::Sequential net(first, second);
  EXPECT_THAT(error_of([&] { int8_training()->convert_module(*net); }),
              HasSubstr("precision 'int8-training': autograd computed '1.weight'"));
  EXPECT_FALSE(is_marked(first->weight));
}

TEST(Int8TrainingMode, AnIgnoredNameWithoutAModuleIsWarnedOf) {
  Net net;
  Warnings warnings;
  int8_training({.ignore_modules = {"lm_hed"}})->convert_module(*net);
  EXPECT_THAT(warnings.texts,
              testing::ElementsAre(HasSubstr("ignore_modules 'lm_hed' matches no submodule")));
}

TEST(Int8TrainingMode, SaysThatOneFrozenWeightIsNotComputedIn8Bits) {
  torch::nn::Linear frozen(8, 8);
  make_precision("nf4", at::kCPU)->convert_module(*frozen);
  torch::nn::Sequential net(frozen, torch::nn::Linear(8, 8));
  Warnings warnings;
  int8_training()->convert_module(*net);
  EXPECT_THAT(warnings.texts, testing::ElementsAre(HasSubstr(": 1 linear layers of")));
}

TEST(Int8TrainingMode, SaysThatFrozenWeightsAreNotComputedIn8Bits) {
  Net net;
  make_precision("nf4", at::kCPU)->convert_module(*net);
  Warnings warnings;
  int8_training()->convert_module(*net);
  EXPECT_THAT(warnings.texts, testing::ElementsAre(AllOf(HasSubstr("3 linear layers"),
                                                         HasSubstr("'int8' is the mode for them"))));
}

}  // namespace
}  // namespace mantissa::int8_training_mode_test
