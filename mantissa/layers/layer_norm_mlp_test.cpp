#include "mantissa/layers/layer_norm_mlp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/layers/test_support_internal.h"

namespace mantissa::layers_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(LayerNormMLP, HasTransformerEnginesParameters) {
  LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 6, .ffn_hidden_size = 10});
  EXPECT_THAT(parameter_names(*mlp), ElementsAre("layer_norm_weight", "layer_norm_bias", "fc1_weight",
                                                 "fc1_bias", "fc2_weight", "fc2_bias"));
  EXPECT_EQ(parameter(*mlp, "fc1_weight").sizes(), (std::vector<int64_t>{10, 6}));
  EXPECT_EQ(parameter(*mlp, "fc2_weight").sizes(), (std::vector<int64_t>{6, 10}));
  LayerNormMLP gated(
      LayerNormMLPOptions{.hidden_size = 6, .ffn_hidden_size = 10, .bias = false, .activation = "swiglu"});
  EXPECT_THAT(parameter_names(*gated),
              ElementsAre("layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc2_weight"));
  EXPECT_EQ(parameter(*gated, "fc1_weight").sizes(), (std::vector<int64_t>{20, 6}));
}

TEST(LayerNormMLP, F8_37_EqualsTheChainOfItsParts) {
  const torch::Tensor x = torch::randn({2, 7, 12});
  for (const std::string activation : {"gelu", "swiglu"}) {
    LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 12, .ffn_hidden_size = 20, .activation = activation});
    randomize(*mlp);
    const auto p = [&](const char* name) { return parameter(*mlp, name); };
    const torch::Tensor normalized = torch::layer_norm(x, {12}, p("layer_norm_weight"), p("layer_norm_bias"));
    const torch::Tensor hidden = torch::linear(normalized, p("fc1_weight"), p("fc1_bias"));
    const torch::Tensor activated = activation == "gelu"
                                        ? torch::gelu(hidden, "tanh")
                                        : torch::silu(hidden.narrow(-1, 0, 20)) * hidden.narrow(-1, 20, 20);
    EXPECT_TRUE(at::equal(mlp->forward(x), torch::linear(activated, p("fc2_weight"), p("fc2_bias"))))
        << activation;
    EXPECT_TRUE(at::equal(mlp->forward_with_norm(x).second, normalized));
  }
}

TEST(LayerNormMLP, BothWeightsDecideTheirProducts) {
  LayerNormMLP mlp(LayerNormMLPOptions{.hidden_size = 6, .ffn_hidden_size = 10});
  const auto rule = std::make_shared<CountingRule>();
  for (const std::string& name : mlp->linear_weights()) mark_weight(parameter(*mlp, name), rule);
  mlp->forward(torch::randn({3, 6}));
  EXPECT_EQ(rule->products, 2);
}

TEST(LayerNormMLP, BadOptionsAreErrors) {
  EXPECT_THAT(error_of([] { LayerNormMLP(LayerNormMLPOptions{.hidden_size = 0, .ffn_hidden_size = 4}); }),
              HasSubstr("LayerNormMLP: hidden_size is 0"));
  EXPECT_THAT(error_of([] { LayerNormMLP(LayerNormMLPOptions{.hidden_size = 4}); }),
              HasSubstr("ffn_hidden_size is 0"));
  EXPECT_THAT(
      error_of([] {
        LayerNormMLP(LayerNormMLPOptions{.hidden_size = 4, .ffn_hidden_size = 8, .activation = "tanh"});
      }),
      HasSubstr("activation 'tanh' is unknown"));
}

}  // namespace
}  // namespace mantissa::layers_test
