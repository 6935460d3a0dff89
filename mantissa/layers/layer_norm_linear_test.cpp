#include "mantissa/layers/layer_norm_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/layers/test_support_internal.h"

namespace mantissa::layers_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(LayerNormLinear, HasTransformerEnginesParameters) {
  LayerNormLinear layer(LayerNormLinearOptions{.in_features = 6, .out_features = 4});
  EXPECT_THAT(parameter_names(*layer), ElementsAre("layer_norm_weight", "layer_norm_bias", "weight", "bias"));
  EXPECT_EQ(parameter(*layer, "weight").sizes(), (std::vector<int64_t>{4, 6}));
  EXPECT_TRUE(at::equal(parameter(*layer, "layer_norm_weight"), torch::ones({6})));
  EXPECT_TRUE(at::equal(parameter(*layer, "bias"), torch::zeros({4})));
  EXPECT_THAT(parameter_names(*LayerNormLinear(
                  LayerNormLinearOptions{.in_features = 6,
                                         .out_features = 4,
                                         .bias = false,
                                         .normalization = {.kind = Normalization::kRMSNorm}})),
              ElementsAre("layer_norm_weight", "weight"));
  EXPECT_THAT(parameter_names(*LayerNormLinear(LayerNormLinearOptions{
                  .in_features = 6, .out_features = 4, .parameters_split = {{"query", 3}, {"key", 1}}})),
              ElementsAre("layer_norm_weight", "layer_norm_bias", "query_weight", "query_bias", "key_weight",
                          "key_bias"));
}

TEST(LayerNormLinear, TheFirstWeightsAreNormalWithTransformerEnginesDeviation) {
  torch::manual_seed(1);
  LayerNormLinear layer(LayerNormLinearOptions{.in_features = 300, .out_features = 300});
  // Of 90,000 values, the deviation's standard error is 0.00005.
  EXPECT_NEAR(parameter(*layer, "weight").std().item<double>(), 0.023, 0.0003);
}

// In float32 nothing is rounded between the two, so the bits are those of the chain.
TEST(LayerNormLinear, F8_36_EqualsLayerNormThenLinear) {
  LayerNormLinear layer(
      LayerNormLinearOptions{.in_features = 12, .out_features = 5, .normalization = {.eps = 1e-3}});
  randomize(*layer);
  const torch::Tensor x = torch::randn({2, 7, 12});
  const torch::Tensor normalized = torch::layer_norm(x, {12}, parameter(*layer, "layer_norm_weight"),
                                                     parameter(*layer, "layer_norm_bias"), 1e-3);
  EXPECT_TRUE(at::equal(layer->forward(x),
                        torch::linear(normalized, parameter(*layer, "weight"), parameter(*layer, "bias"))));
  const auto [parts, norm] = layer->forward_with_norm(x);
  EXPECT_TRUE(at::equal(norm, normalized));
  EXPECT_EQ(parts.size(), 1);
}

TEST(LayerNormLinear, PartsAreTheRowsOfOneWeight) {
  LayerNormLinear split(
      LayerNormLinearOptions{.in_features = 8, .out_features = 6, .parameters_split = {{"a", 2}, {"b", 4}}});
  LayerNormLinear whole(LayerNormLinearOptions{.in_features = 8, .out_features = 6});
  randomize(*split);
  {
    torch::NoGradGuard no_grad;
    for (const char* const name : {"weight", "bias"})
      parameter(*whole, name)
          .copy_(torch::cat(
              {parameter(*split, std::string("a_") + name), parameter(*split, std::string("b_") + name)}));
    for (const char* const name : {"layer_norm_weight", "layer_norm_bias"})
      parameter(*whole, name).copy_(parameter(*split, name));
  }
  const torch::Tensor x = torch::randn({3, 8});
  EXPECT_TRUE(torch::allclose(split->forward(x), whole->forward(x), 1e-6, 1e-6));
  EXPECT_EQ(split->forward_parts(x)[1].sizes(), (std::vector<int64_t>{3, 4}));
}

TEST(LayerNormLinear, F8_35_AZeroCenteredWeightIsOneLess) {
  for (const Normalization kind : {Normalization::kLayerNorm, Normalization::kRMSNorm}) {
    LayerNormLinear plain(
        LayerNormLinearOptions{.in_features = 16, .out_features = 4, .normalization = {.kind = kind}});
    LayerNormLinear centered(LayerNormLinearOptions{
        .in_features = 16, .out_features = 4, .normalization = {.kind = kind, .zero_centered_gamma = true}});
    EXPECT_TRUE(at::equal(parameter(*centered, "layer_norm_weight"), torch::zeros({16})));
    randomize(*plain);
    {
      torch::NoGradGuard no_grad;
      for (const auto& item : plain->named_parameters()) parameter(*centered, item.key()).copy_(item.value());
      parameter(*centered, "layer_norm_weight").sub_(1);
    }
    const torch::Tensor x = torch::randn({5, 16});
    EXPECT_TRUE(torch::allclose(centered->forward(x), plain->forward(x), 1.3e-6, 1e-5));
  }
}

TEST(LayerNormLinear, RMSNormDividesByTheRootOfTheMeanSquare) {
  LayerNormLinear layer(
      LayerNormLinearOptions{.in_features = 16,
                             .out_features = 4,
                             .bias = false,
                             .normalization = {.kind = Normalization::kRMSNorm, .eps = 1e-2}});
  randomize(*layer);
  const torch::Tensor x = torch::randn({5, 16});
  const torch::Tensor normalized =
      x / (x.square().mean(-1, true) + 1e-2).sqrt() * parameter(*layer, "layer_norm_weight");
  EXPECT_TRUE(
      torch::allclose(layer->forward(x), torch::linear(normalized, parameter(*layer, "weight")), 1e-5, 1e-6));
}

TEST(LayerNormLinear, TheWeightDecidesTheProduct) {
  LayerNormLinear layer(
      LayerNormLinearOptions{.in_features = 8, .out_features = 6, .parameters_split = {{"a", 2}, {"b", 4}}});
  EXPECT_THAT(layer->linear_weights(), ElementsAre("a_weight", "b_weight"));
  const auto rule = std::make_shared<CountingRule>();
  for (const std::string& name : layer->linear_weights()) mark_weight(parameter(*layer, name), rule);
  layer->forward(torch::randn({3, 8}));
  EXPECT_EQ(rule->products, 2);
}

TEST(LayerNormLinear, ACloneHasItsOwnValues) {
  LayerNormLinear layer(LayerNormLinearOptions{.in_features = 8, .out_features = 6});
  const auto copy = std::dynamic_pointer_cast<LayerNormLinearImpl>(layer->clone());
  const torch::Tensor x = torch::randn({3, 8}), y = layer->forward(x);
  EXPECT_TRUE(at::equal(copy->forward(x), y));
  randomize(*layer);
  EXPECT_TRUE(at::equal(copy->forward(x), y));
}

TEST(LayerNormLinear, BadSizesAreErrors) {
  const auto error = [](const LayerNormLinearOptions& options) {
    return error_of([&] { LayerNormLinear{options}; });
  };
  EXPECT_THAT(error({.in_features = 0, .out_features = 4}),
              HasSubstr("in_features is 0; give a number above 0"));
  EXPECT_THAT(error({.in_features = 4, .out_features = -1}), HasSubstr("out_features is -1"));
  EXPECT_THAT(error({.in_features = 4, .out_features = 4, .parameters_split = {{"a", 3}}}),
              HasSubstr("have 3 features, and out_features is 4"));
  EXPECT_THAT(error({.in_features = 4, .out_features = 4, .parameters_split = {{"a", 2}, {"a", 2}}}),
              HasSubstr("two parts named 'a'"));
  EXPECT_THAT(error({.in_features = 4, .out_features = 4, .parameters_split = {{"", 4}}}),
              HasSubstr("a part without a name"));
  EXPECT_THAT(error({.in_features = 4, .out_features = 4, .parameters_split = {{"a", 4}, {"b", 0}}}),
              HasSubstr("the size of part 'b' is 0"));
}

}  // namespace
}  // namespace mantissa::layers_test
