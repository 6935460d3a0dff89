// Weights that a mode stores in FP8, with master weights for the optimizer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/fp8_weight.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/precision/fp8.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::fp8_primary_weights_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Fp8Recipe> recipes() {
  return {DelayedScaling{.amax_history_len = 3}, Float8CurrentScaling(), Float8BlockScaling(),
          MXFP8BlockScaling{.enable_2d_quantization = true}};
}

PrecisionOptions stored(const Fp8Recipe& recipe = DelayedScaling{.amax_history_len = 3}) {
  return {.recipe = recipe, .fp8_primary_weights = true};
}

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::GELU(), torch::nn::Linear(32, 10));
}

/// A training whose layers are stored in FP8.
struct Training {
  explicit Training(const PrecisionOptions& options = stored(),
                    const std::string& name = "transformer-engine")
      : mode(make_precision(name, at::kCPU, options)), net(make_net()) {
    mode->convert_module(*net);
    set_up_optimizer();
  }
  void set_up_optimizer() {
    optimizer =
        std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    mode->setup_optimizer(*optimizer);
  }
  at::Tensor loss(int64_t number) const {
    const at::Tensor x = (torch::arange(24 * 16, at::kFloat).view({24, 16}) * 0.37 + number).sin();
    const at::Tensor y = (x.sum(1) * 2 + 5).clamp(0, 9).to(at::kLong);
    const Scope scope = mode->forward_context();
    auto module = net;
    return torch::cross_entropy_loss(module->forward(mode->convert_input(x)), y);
  }
  StepResult step(int64_t number, int micro_batches = 1) {
    optimizer->zero_grad();
    for (int i = 0; i < micro_batches; ++i) mode->backward(loss(number + 100 * i));
    return mode->optimizer_step(*optimizer);
  }
  at::Tensor weight(const std::string& name = "0.weight") const { return net->named_parameters()[name]; }
  at::Tensor values(const std::string& name = "0.weight") const {
    return packed_data(weight(name))->dequantize(at::kFloat);
  }
  at::Tensor master(const std::string& name = "0.weight") const {
    return master_weights_of(StateReader(mode->state_dict())).at(name);
  }
  std::map<std::string, at::Tensor> parts() const {
    std::map<std::string, at::Tensor> own;
    for (const auto& entry : net->named_parameters()) own.emplace(entry.key(), entry.value().detach());
    return named_parts(own);
  }
  StateDict checkpoint() const {
    StateDict weights;
    for (const auto& [name, part] : parts()) weights.emplace(name, part);
    return snapshot({{"weights", std::move(weights)},
                     {"optimizer", optimizer_state(*optimizer)},
                     {"precision", mode->state_dict()}});
  }
  void load_weights(std::map<std::string, at::Tensor> from) {
    PartsLoader packed(*net, from);
    const torch::NoGradGuard no_grad;
    for (auto& entry : net->named_parameters())
      if (const auto found = from.find(entry.key()); found != from.end()) entry.value().copy_(found->second);
    packed.load();
  }
  void load_weights(const StateReader& weights) {
    std::map<std::string, at::Tensor> from;
    for (const auto& [name, value] : weights.to_dict()) from.emplace(name, weights.at(name).to_tensor());
    load_weights(from);
  }

  std::unique_ptr<Precision> mode;
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer;
};

TEST(Fp8PrimaryWeights, LayersTakeOneByteAValueAndMastersHaveTheValuesFromBefore) {
  const torch::nn::Sequential before = make_net();
  const Training run;
  for (const char* const name : {"0.weight", "2.weight"}) {
    ASSERT_TRUE(is_fp8_weight(run.weight(name)) && run.weight(name).requires_grad());
    const int64_t values = run.weight(name).numel();
    EXPECT_EQ(run.weight(name).storage().nbytes(), static_cast<size_t>(values) + 2 * sizeof(float))
        << "codes, scale and amax";
    EXPECT_TRUE(
        run.master(name).equal(before->named_parameters()[name].detach().to(at::kBFloat16).to(at::kFloat)));
    EXPECT_FALSE(high_precision_init_val(run.weight(name)).defined()) << "they are in the master weights now";
  }
  EXPECT_EQ(run.weight("0.bias").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(run.mode->traits().master_weights);
}

/// The same training by hand: the loop keeps a master weight for each layer and stores it after the step.
struct ByHand {
  explicit ByHand(const Fp8Recipe& recipe)
      : mode(make_precision("transformer-engine", at::kCPU, {.master_weights = true, .recipe = recipe})),
        net(make_net()) {
    // The mode's seeds of layers, in their order.
    const Training like(stored(recipe));
    std::vector<at::Tensor> stepped;
    for (auto& entry : net->named_parameters()) {
      entry.value().set_data(entry.value().detach().to(at::kBFloat16));
      stepped.push_back(entry.value());
      if (entry.value().dim() != 2) continue;
      layers.push_back(
          {entry.value(), entry.value().detach().to(at::kFloat).requires_grad_(),
           std::make_shared<Fp8LinearState>(recipe, fp8_state_of(like.weight(entry.key()))->seed())});
      make_fp8_weight(entry.value(), layers.back().state);
      stepped.back() = layers.back().master;
    }
    mode->convert_module(*net);
    optimizer = std::make_unique<torch::optim::SGD>(stepped, torch::optim::SGDOptions(0.05).momentum(0.9));
    mode->setup_optimizer(*optimizer);
  }
  void step(const Training& like, int64_t number, int micro_batches) {
    optimizer->zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      const at::Tensor x =
          (torch::arange(24 * 16, at::kFloat).view({24, 16}) * 0.37 + number + 100 * i).sin();
      const at::Tensor y = (x.sum(1) * 2 + 5).clamp(0, 9).to(at::kLong);
      at::Tensor loss;
      {
        const Scope scope = like.mode->forward_context();
        loss = torch::cross_entropy_loss(net->forward(like.mode->convert_input(x)), y);
      }
      mode->backward(loss);
      for (Layer& layer : layers) {
        const at::Tensor gradient = layer.weight.grad().to(at::kFloat);
        layer.weight.mutable_grad() = at::Tensor();
        layer.master.mutable_grad() =
            layer.master.grad().defined() ? layer.master.grad() + gradient : gradient;
      }
    }
    mode->optimizer_step(*optimizer);
    for (const Layer& layer : layers) store_fp8_weight(layer.weight, layer.master);
  }

  struct Layer {
    at::Tensor weight, master;
    std::shared_ptr<Fp8LinearState> state;
  };
  std::unique_ptr<Precision> mode;
  torch::nn::Sequential net{nullptr};
  std::vector<Layer> layers;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

TEST(Fp8PrimaryWeights, AModeTrainsAsALoopThatStoresTheWeightsItself) {
  for (const Fp8Recipe& recipe : recipes()) {
    for (const int micro_batches : {1, 2}) {
      SCOPED_TRACE(c10::str(recipe_name(recipe), " ", micro_batches));
      ByHand by_hand(recipe);
      Training run(stored(recipe));
      for (int i = 0; i < 5; ++i) {
        run.step(i, micro_batches);
        by_hand.step(run, i, micro_batches);
        for (size_t layer = 0; layer < 2; ++layer) {
          const std::string name = layer == 0 ? "0.weight" : "2.weight";
          ASSERT_TRUE(run.master(name).equal(by_hand.layers[layer].master)) << name << i;
          ASSERT_TRUE(
              run.values(name).equal(packed_data(by_hand.layers[layer].weight)->dequantize(at::kFloat)))
              << name << i;
          EXPECT_FALSE(run.weight(name).grad().defined()) << "it is the master weight's";
        }
      }
    }
  }
}

TEST(Fp8PrimaryWeights, ALoadedRunContinuesBitForBitWhateverIsLoadedFirst) {
  for (const Fp8Recipe& recipe : recipes()) {
    for (const bool state_first : {false, true}) {
      SCOPED_TRACE(c10::str(recipe_name(recipe), state_first ? ", state first" : ""));
      Training straight(stored(recipe)), resumed(stored(recipe));
      for (int i = 0; i < 4; ++i) straight.step(i);
      const StateDict saved = straight.checkpoint();
      for (int i = 4; i < 7; ++i) straight.step(i);
      resumed.step(50);
      const StateReader state(saved);
      if (!state_first) resumed.load_weights(state.at("weights"));
      load_optimizer_state(*resumed.optimizer, state.at("optimizer"));
      EXPECT_THAT(resumed.mode->load_state_dict(state.at("precision")), IsEmpty());
      if (state_first) resumed.load_weights(state.at("weights"));
      for (int i = 4; i < 7; ++i) resumed.step(i);
      EXPECT_EQ(difference(straight.checkpoint(), resumed.checkpoint()), "");
    }
  }
}

TEST(Fp8PrimaryWeights, ValuesThatAreLoadedReachTheMasterWeights) {
  Training run;
  run.step(0);
  const at::Tensor plain = torch::linspace(-1, 1, 32 * 16).view({32, 16}).to(at::kBFloat16);
  std::map<std::string, at::Tensor> file = run.parts();
  std::erase_if(file, [](const auto& part) { return part.first.starts_with("0.weight"); });
  file.emplace("0.weight", plain);
  run.load_weights(file);
  const at::Tensor other = run.master("2.weight").clone();
  for (auto& group : run.optimizer->param_groups()) group.options().set_lr(0);
  run.step(1);
  EXPECT_TRUE(run.master().equal(plain.to(at::kFloat))) << "more exact than the codes";
  EXPECT_TRUE(run.master("2.weight").equal(other)) << "what was not loaded keeps its low bits";

  // Codes have no values from before, so theirs count.
  Training donor;
  for (int i = 0; i < 3; ++i) donor.step(i + 20);
  const StateDict saved = donor.checkpoint();
  const at::Tensor codes = donor.values();
  run.load_weights(StateReader(saved).at("weights"));
  run.step(2);
  EXPECT_TRUE(run.master().equal(codes));
}

TEST(Fp8PrimaryWeights, ASkippedStepKeepsTheMasterWeights) {
  PrecisionOptions options = stored(Float8CurrentScaling());
  options.loss_scale = "dynamic";
  Training run(options, "transformer-engine-float16");
  run.step(0);
  const at::Tensor master = run.master().clone(), values = run.values();
  run.optimizer->zero_grad();
  run.mode->backward(run.loss(1) * std::numeric_limits<float>::infinity());
  EXPECT_TRUE(run.mode->optimizer_step(*run.optimizer).skipped());
  EXPECT_TRUE(run.master().equal(master));
  EXPECT_TRUE(run.values().equal(values));
  EXPECT_FALSE(run.step(2).skipped());
  EXPECT_FALSE(run.master().equal(master));
}

TEST(Fp8PrimaryWeights, AStepThatThrowsLosesNoUpdate) {
  Training run, straight;
  run.step(0), straight.step(0);
  auto& layers = dynamic_cast<TransformerEngine&>(*run.mode).fp8_layers();
  layers.set_amax_reduction([](const at::Tensor&) { throw std::runtime_error("a rank is gone"); });
  EXPECT_THROW(run.step(1), std::runtime_error);
  layers.set_amax_reduction(nullptr);
  straight.step(1);
  EXPECT_TRUE(run.master().equal(straight.master())) << "the optimizer had stepped";
  run.optimizer->zero_grad();
  for (auto& group : run.optimizer->param_groups()) group.options().set_lr(0);
  run.step(2);
  EXPECT_TRUE(run.master().equal(straight.master())) << "the old codes do not count as a change of the model";
}

TEST(Fp8PrimaryWeights, AnotherRunBeginsWithTheMasterWeightsAndAnotherModeWithTheCodes) {
  Training run;
  for (int i = 0; i < 3; ++i) run.step(i);
  const at::Tensor master = run.master().clone();
  run.mode->teardown();
  run.mode->convert_module(*run.net);
  ASSERT_TRUE(is_fp8_weight(run.weight()));
  run.set_up_optimizer();
  EXPECT_TRUE(run.master().equal(master.to(at::kBFloat16).to(at::kFloat))) << "as in 16 bits, not as in 8";

  const at::Tensor values = run.values();
  run.mode.reset();  // whose master weights take the gradients
  const auto plain = make_precision("bf16-true", at::kCPU);
  plain->convert_module(*run.net);
  EXPECT_FALSE(is_packed(run.weight()));
  EXPECT_EQ(run.weight().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(run.weight().requires_grad());
  EXPECT_TRUE(run.weight().equal(values.to(at::kBFloat16)));
  torch::optim::SGD optimizer(run.net->parameters(), 0.1);
  plain->setup_optimizer(optimizer);
  plain->backward(run.net->forward(torch::ones({2, 16}, at::kBFloat16)).sum());
  EXPECT_TRUE(run.weight().grad().defined());
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() : embedding(10, 16), inner(16, 16), head(torch::nn::LinearOptions(16, 10).bias(false)) {
    register_module("embedding", embedding);
    register_module("inner", inner);
    register_module("head", head);
    head->weight = embedding->weight;
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear inner, head;
};

TEST(Fp8PrimaryWeights, ASharedAndAnIgnoredWeightStayIn16Bits) {
  TiedImpl tied;
  make_precision("transformer-engine", at::kCPU, stored())->convert_module(tied);
  EXPECT_TRUE(is_fp8_weight(tied.inner->weight));
  EXPECT_FALSE(is_packed(tied.head->weight));
  EXPECT_TRUE(fp8_state_of(tied.head->weight)) << "its products are in FP8 all the same";

  PrecisionOptions options = stored();
  options.ignore_modules = {"2"};
  const Training run(options);
  EXPECT_TRUE(is_fp8_weight(run.weight()));
  EXPECT_FALSE(is_packed(run.weight("2.weight")));
}

TEST(Fp8PrimaryWeights, WhatCannotBeDoneIsRefused) {
  const auto refused = [](const char* mode, PrecisionOptions options) {
    return error_of([&] { make_precision(mode, at::kCPU, options); });
  };
  EXPECT_THAT(refused("fp8-mixed", stored()),
              AllOf(HasSubstr("with fp8_primary_weights true"), HasSubstr("only transformer-engine")));
  EXPECT_THAT(refused("bf16-true", stored()), HasSubstr("with"));
  PrecisionOptions without = stored();
  without.master_weights = false;
  EXPECT_THAT(refused("transformer-engine", without), HasSubstr("set master_weights"));
  EXPECT_THAT(refused("transformer-engine", stored(NVFP4BlockScaling())), HasSubstr("codes of 4 bits"));
  EXPECT_THAT(refused("transformer-engine", stored(MXFP8BlockScaling())),
              HasSubstr("enable_2d_quantization"));
}

}  // namespace
}  // namespace mantissa::fp8_primary_weights_test
