#include "mantissa/precision/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/activation_checkpointing.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/registry.h"

namespace mantissa::recompute_test {
namespace {

using testing::HasSubstr;

struct Training {
  explicit Training(const std::string& name, const PrecisionOptions& options = {})
      : mode(make_precision(name, at::kCPU, options)) {
    torch::manual_seed(4);
    net =
        torch::nn::Sequential(torch::nn::Linear(8, 32), torch::nn::Linear(32, 32), torch::nn::Linear(32, 4));
    mode->convert_module(*net);
    optimizer = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
    mode->setup_optimizer(*optimizer);
  }
  at::Tensor block(const at::Tensor& x) {
    ++passes;
    return torch::dropout(net[1]->as<torch::nn::Linear>()->forward(x).relu(), 0.5, /*train=*/true);
  }
  at::Tensor step(const at::Tensor& x, bool recomputes) {
    optimizer->zero_grad();
    const auto part = [&](const at::Tensor& h) { return block(h); };
    at::Tensor y;
    {
      const Scope scope = mode->forward_context();
      const at::Tensor h = net[0]->as<torch::nn::Linear>()->forward(mode->convert_input(x));
      y = net[2]->as<torch::nn::Linear>()->forward(recomputes ? recompute(part, h) : part(h));
    }
    mode->backward(y.to(at::kFloat).square().mean());
    const at::Tensor gradients =
        torch::cat({net->parameters()[0].grad().flatten(), net->parameters()[2].grad().flatten()});
    mode->optimizer_step(*optimizer);
    return gradients.clone();
  }
  std::unique_ptr<Precision> mode;
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer;
  int passes = 0;
};

TEST(Recompute, GivesTheBitsOfTheForwardPass) {
  const std::vector<std::pair<std::string, PrecisionOptions>> modes = {
      {"32-true", {}},
      {"bf16-mixed", {}},
      {"fp8-mixed", {}},
      {"fp8-mixed", {.recipe = NVFP4BlockScaling{}}},
      {"transformer-engine", {}}};
  for (const auto& [name, options] : modes) {
    SCOPED_TRACE(name);
    Training plain(name, options), recomputed(name, options);
    for (int i = 0; i < 3; ++i) {
      torch::manual_seed(i);
      const at::Tensor x = torch::randn({16, 8});
      torch::manual_seed(i);
      const at::Tensor want = plain.step(x, false), next = torch::rand({1});
      torch::manual_seed(i);
      EXPECT_TRUE(at::equal(recomputed.step(x, true), want)) << "step " << i;
      EXPECT_TRUE(at::equal(torch::rand({1}), next)) << "the generator is where it would be";
    }
    EXPECT_EQ(plain.passes, 3);
    EXPECT_EQ(recomputed.passes, 6);
  }
}

TEST(Recompute, StatisticsCountOnePass) {
  Training run("fp8-mixed");
  run.mode->sample_layers(LayerSampling::kTensors);
  run.step(torch::randn({16, 8}), true);
  EXPECT_EQ(run.mode->layer_statistics().at("1").tensors.at("input").numel, 16 * 32);
}

TEST(Recompute, ParametersGetGradientsThoughTheInputNeedsNone) {
  const at::Tensor w = torch::ones({3}, torch::requires_grad());
  recompute([&](const at::Tensor& tokens) { return w.index_select(0, tokens) * 2; }, torch::tensor({1, 1, 2}))
      .sum()
      .backward();
  EXPECT_TRUE(at::equal(w.grad(), torch::tensor({0.F, 4.F, 2.F})));
}

TEST(Recompute, UnderNoGradItIsTheFunction) {
  int passes = 0;
  const at::NoGradGuard no_grad;
  const at::Tensor y = recompute([&](const at::Tensor& x) { return ++passes, x * 2; }, torch::ones({2}));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(passes, 1);
}

TEST(Recompute, AThrowInTheSecondPassLeavesTheGeneratorAlone) {
  int passes = 0;
  const at::Tensor x = torch::ones({2}, torch::requires_grad());
  const at::Tensor y = recompute(
      [&](const at::Tensor& input) {
        TORCH_CHECK(++passes == 1, "the second pass failed");
        return torch::dropout(input, 0.5, true);
      },
      x);
  torch::manual_seed(9);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), HasSubstr("the second pass failed"));
  const at::Tensor next = torch::rand({1});
  torch::manual_seed(9);
  EXPECT_TRUE(at::equal(torch::rand({1}), next));
}

TEST(Recompute, RefusesNoFunctionAndASecondDerivative) {
  EXPECT_THAT(error_of([] { recompute(nullptr, torch::ones({1})); }), HasSubstr("got no function"));
  const at::Tensor x = torch::ones({1}, torch::requires_grad());
  const at::Tensor y = recompute([](const at::Tensor& input) { return input * input; }, x);
  EXPECT_THAT(error_of([&] { torch::autograd::grad({y}, {x}, {}, {}, /*create_graph=*/true); }),
              HasSubstr("no second derivative"));
}

/// Three layers that a mode can compute again.
struct LayersImpl : torch::nn::Module, HasActivationCheckpointing {
  LayersImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(torch::nn::Linear(8, 8));
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < layers->size(); ++i)
      x = checkpointed(
          [this, its = layers->ptr<torch::nn::LinearImpl>(i)](const at::Tensor& h) {
            ++passes;
            return its->forward(h).relu();
          },
          x);
    return x;
  }
  torch::nn::ModuleList layers;
  int passes = 0;
};
TORCH_MODULE(Layers);

TEST(ActivationCheckpointing, LayersOfPartsAndOfTheModelComputeAgain) {
  for (const bool inside : {false, true}) {
    torch::manual_seed(2);
    Layers layers;
    torch::nn::Sequential outer(layers);
    torch::nn::Module& model = inside ? static_cast<torch::nn::Module&>(*outer) : *layers;
    const at::Tensor x = torch::randn({4, 8});
    const auto gradient = [&] {
      model.zero_grad();
      layers->forward(x).sum().backward();
      return layers->parameters()[0].grad().clone();
    };
    const at::Tensor want = gradient();
    EXPECT_EQ(layers->passes, 3);
    set_activation_checkpointing(model, true);
    EXPECT_TRUE(layers->has_recompute());
    EXPECT_TRUE(at::equal(gradient(), want));
    EXPECT_EQ(layers->passes, 9);
    set_activation_checkpointing(model, false);
    gradient();
    EXPECT_EQ(layers->passes, 12);
  }
}

TEST(ActivationCheckpointing, AModelWithoutSuchLayersIsAnError) {
  torch::nn::Linear net(2, 2);
  EXPECT_THAT(
      error_of<c10::ValueError>([&] { set_activation_checkpointing(*net, true); }),
      testing::AllOf(HasSubstr("LinearImpl"), HasSubstr("derive it from HasActivationCheckpointing")));
  set_activation_checkpointing(*net, false);
}

}  // namespace
}  // namespace mantissa::recompute_test
