// Transformer Engine's fused layers in the modes with FP8 products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/layers/layer_norm_linear.h"
#include "mantissa/layers/layer_norm_mlp.h"
#include "mantissa/layers/transformer_layer.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::fp8_transformer_layer_test {
namespace {

using testing::ElementsAre;

const PrecisionOptions kAllLayers{.fp8_first_and_last = true};

std::vector<std::string> fp8_layers(const Precision& mode) {
  std::vector<std::string> names;
  for (const LayerReport& layer : mode.layer_report())
    if (layer.products) names.push_back(layer.name);
  return names;
}

/// Marks a module's weights as a mode does, and leaves the other operations in float32.
void mark(torch::nn::Module& module, const std::vector<std::string>& weights) {
  for (const std::string& name : weights)
    mark_weight(module.named_parameters()[name],
                std::make_shared<Fp8TrainingRule>(std::make_shared<Fp8LinearState>(Float8CurrentScaling())));
}

TEST(Fp8TransformerLayer, F8_36_ALayerNormLinearIsALayerNormAndAnFp8Linear) {
  LayerNormLinear layer(LayerNormLinearOptions{.in_features = 24, .out_features = 7});
  mark(*layer, layer->linear_weights());
  const at::Tensor x = torch::randn({5, 24}, at::requires_grad()), x2 = x.detach().clone().requires_grad_();
  const auto own = layer->named_parameters();
  const at::Tensor normalized = torch::layer_norm(x2, {24}, own["layer_norm_weight"], own["layer_norm_bias"]);
  const at::Tensor expected = linear_fp8(normalized, own["weight"].detach(), own["bias"],
                                         std::make_shared<Fp8LinearState>(Float8CurrentScaling()));
  const Fp8Autocast region;
  const at::Tensor y = layer->forward(x);
  EXPECT_TRUE(at::equal(y, expected));
  EXPECT_FALSE(at::equal(y, torch::linear(normalized, own["weight"].detach() + 0, own["bias"])));
  y.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x2.grad()));
}

TEST(Fp8TransformerLayer, F8_37_ALayerNormMlpHasTheScalesOfTwoProducts) {
  for (const std::string activation : {"gelu", "swiglu"}) {
    LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 16, .ffn_hidden_size = 32, .activation = activation});
    const auto mode = make_precision("fp8-mixed", at::kCPU, kAllLayers);
    mode->convert_module(*mlp);
    EXPECT_THAT(fp8_layers(*mode), ElementsAre("fc1_weight", "fc2_weight"));
    int64_t forward = 0, backward = 0;
    for (const std::string& name : mlp->linear_weights()) {
      const auto state = fp8_state_of(mlp->named_parameters()[name]);
      ASSERT_TRUE(state) << name;
      forward += state->forward.scale.numel();
      backward += state->backward.scale.numel();
    }
    EXPECT_EQ(forward, 6);
    EXPECT_EQ(backward, 4);
  }
}

TEST(Fp8TransformerLayer, TrainsInEveryFp8Mode) {
  const std::vector<std::pair<std::string, PrecisionOptions>> modes = {
      {"fp8-mixed", kAllLayers},
      {"transformer-engine", kAllLayers},
      {"transformer-engine-float16", kAllLayers},
      {"transformer-engine", {.fp8_primary_weights = true}}};
  for (const auto& [name, options] : modes) {
    torch::manual_seed(3);
    TransformerLayer layer(TransformerLayerOptions{.hidden_size = 32,
                                                   .ffn_hidden_size = 64,
                                                   .num_attention_heads = 4,
                                                   .num_gqa_groups = 2,
                                                   .hidden_dropout = 0,
                                                   .attention_dropout = 0});
    const auto mode = make_precision(name, at::kCPU, options);
    mode->convert_module(*layer);
    EXPECT_EQ(is_packed(layer->named_parameters()["layernorm_mlp.fc1_weight"]),
              options.fp8_primary_weights.has_value());
    EXPECT_THAT(
        fp8_layers(*mode),
        ElementsAre("self_attention.layernorm_qkv.query_weight", "self_attention.layernorm_qkv.key_weight",
                    "self_attention.layernorm_qkv.value_weight", "self_attention.proj",
                    "layernorm_mlp.fc1_weight", "layernorm_mlp.fc2_weight"));
    torch::optim::SGD optimizer(layer->parameters(), 0.5);
    mode->setup_optimizer(optimizer);
    const at::Tensor x = torch::randn({9, 3, 32}), target = x.flip(2) * 0.5;
    std::vector<double> losses;
    for (int step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Scope scope = mode->forward_context();
        loss = torch::mse_loss(mode->convert_output(layer->forward(mode->convert_input(x))), target);
      }
      mode->backward(loss);
      mode->optimizer_step(optimizer);
      losses.push_back(loss.item<double>());
    }
    EXPECT_LT(losses.back(), 0.8 * losses.front()) << name;
  }
}

TEST(Fp8TransformerLayer, ItsWeightsCanBeKeptIn4Bits) {
  TransformerLayer layer(
      TransformerLayerOptions{.hidden_size = 64, .ffn_hidden_size = 128, .num_attention_heads = 4});
  layer->eval();
  const at::Tensor x = torch::randn({9, 3, 64}), exact = layer->forward(x);
  const auto mode = make_precision("nf4", at::kCPU, {.ignore_modules = {"layernorm_mlp.fc1"}});
  mode->convert_module(*layer);
  const auto parameters = layer->named_parameters();
  EXPECT_TRUE(is_packed(parameters["self_attention.layernorm_qkv.query_weight"]));
  EXPECT_TRUE(is_packed(parameters["layernorm_mlp.fc2_weight"]));
  EXPECT_FALSE(is_packed(parameters["layernorm_mlp.fc1_weight"]));
  const Scope scope = mode->forward_context();
  const at::Tensor y = mode->convert_output(layer->forward(mode->convert_input(x)));
  EXPECT_LT((y - exact).norm().item<double>(), 0.05 * exact.norm().item<double>())
      << "the residual dominates, so the error of 4 bits is small";
}

}  // namespace
}  // namespace mantissa::fp8_transformer_layer_test
