#include "mantissa/quant/stored_fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/fp8_weight.h"
#include "mantissa/quant/stored_weights.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::stored_fp8_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A file of a weight that is stored by the recipe, and a bias.
struct File {
  explicit File(const Fp8Recipe& recipe) {
    torch::manual_seed(1);
    const at::Tensor weight = torch::randn({150, 70}) * torch::logspace(-3, 2, 70);
    make_fp8_weight(weight, std::make_shared<Fp8LinearState>(recipe));
    values = packed_data(weight)->dequantize(at::kFloat);
    tensors = named_parts({{"fc.weight", weight}, {"fc.bias", torch::ones({150})}});
  }
  at::Tensor values;
  std::map<std::string, at::Tensor> tensors;
};

TEST(StoredFp8, ValuesAreThoseOfTheWeight) {
  for (const Fp8Recipe& recipe :
       {Fp8Recipe(DelayedScaling()), Fp8Recipe(Float8CurrentScaling()), Fp8Recipe(Float8BlockScaling()),
        Fp8Recipe(MXFP8BlockScaling{.enable_2d_quantization = true})}) {
    const File file(recipe);
    EXPECT_THAT(file.tensors.at("fc.weight").sizes(), ElementsAre(150, 70)) << "without padding";
    EXPECT_TRUE(dequantize_stored_fp8(file.tensors, "fc.weight").equal(file.values)) << recipe_name(recipe);
    EXPECT_TRUE(
        dequantize_stored_fp8(file.tensors, "fc.weight", at::kBFloat16).equal(file.values.to(at::kBFloat16)));
    EXPECT_THAT(quantized_weights_of(file.tensors), ElementsAre("fc.weight"));
    const auto plain = dequantize_stored(file.tensors);
    EXPECT_EQ(plain.size(), 2) << "its scales are gone";
    EXPECT_TRUE(plain.at("fc.weight").equal(file.values));
    const auto shapes = stored_shapes(file.tensors);
    EXPECT_EQ(shapes.size(), 2);
    EXPECT_THAT(shapes.at("fc.weight"), ElementsAre(150, 70));
  }
}

TEST(StoredFp8, AModelThatHasItPackedGetsTheCodes) {
  const File file{Float8CurrentScaling()};
  const at::Tensor own = torch::zeros({150, 70});
  make_fp8_weight(own, std::make_shared<Fp8LinearState>(Float8CurrentScaling()));
  EXPECT_EQ(dequantize_plain(file.tensors, {{"fc.weight", own}}).size(), file.tensors.size());
  EXPECT_EQ(dequantize_plain(file.tensors, {{"fc.weight", torch::zeros({150, 70})}}).size(), 2);
}

TEST(StoredFp8, AModelOfAnotherRecipeGetsTheValues) {
  const std::vector<Fp8Recipe> recipes = {DelayedScaling(), Float8CurrentScaling(), Float8BlockScaling(),
                                          MXFP8BlockScaling{.enable_2d_quantization = true}};
  for (const Fp8Recipe& saved : recipes)
    for (const Fp8Recipe& loaded : recipes) {
      const File file(saved);
      torch::nn::Linear layer(torch::nn::LinearOptions(70, 150));
      make_fp8_weight(layer->weight, std::make_shared<Fp8LinearState>(loaded));
      const bool is_same = recipe_name(saved) == recipe_name(loaded);
      EXPECT_EQ(is_stored_as(layer->weight, "fc.weight", file.tensors), is_same);
      std::map<std::string, at::Tensor> tensors =
          dequantize_plain(file.tensors, {{"fc.weight", layer->weight}});
      torch::nn::Sequential holder(torch::nn::SequentialImpl({{"fc", torch::nn::AnyModule(layer)}}));
      PartsLoader loader(*holder, tensors);
      EXPECT_EQ(tensors.size(), 1) << "the bias";
      loader.load();
      const at::Tensor got = packed_data(layer->weight)->dequantize(at::kFloat);
      EXPECT_TRUE(!is_same || got.equal(file.values));
      EXPECT_LE(((got - file.values) / file.values.abs().clamp_min(0.1)).abs().max().item<float>(), 0.0626F)
          << recipe_name(saved) << " to " << recipe_name(loaded);
    }
}

TEST(StoredFp8, OtherTensorsAreNone) {
  std::map<std::string, at::ScalarType> dtypes = {{"a", at::kFloat8_e4m3fn},   {"b", at::kFloat},
                                                  {"b.scale_inv", at::kFloat}, {"c", at::kFloat8_e4m3fn},
                                                  {"c.scale_inv", at::kFloat}, {"c.amax", at::kFloat}};
  EXPECT_FALSE(is_stored_fp8(dtypes, "a")) << "without scales it is a tensor of another program's";
  EXPECT_FALSE(is_stored_fp8(dtypes, "b"));
  EXPECT_FALSE(is_stored_fp8(dtypes, "none"));
  EXPECT_THAT(stored_fp8_parts(dtypes, "c"), ElementsAre("c", "c.scale_inv", "c.amax"));
  EXPECT_EQ(format_of(find_stored_weights(dtypes).at("c")), Format::kFloat8E4M3);
  EXPECT_EQ(find_stored_weights(dtypes).size(), 1);
}

TEST(StoredFp8, ScalesThatDoNotFitAreRefused) {
  File file{Float8BlockScaling()};
  at::Tensor& scales = file.tensors.at("fc.weight.scale_inv");
  const auto error = [&] { return error_of([&] { dequantize_stored_fp8(file.tensors, "fc.weight"); }); };
  scales = torch::ones({3});
  EXPECT_THAT(error(),
              HasSubstr("'fc.weight.scale_inv' has 3 scales, and 'fc.weight' of shape [150, 70] has 2"));
  scales = torch::ones({2}, at::kDouble);
  EXPECT_THAT(error(), HasSubstr("needs Float"));
  scales = torch::ones({});
  file.tensors.at("fc.weight") = file.tensors.at("fc.weight").view({-1});
  EXPECT_THAT(error(), HasSubstr("a matrix in FP8"));
}

}  // namespace
}  // namespace mantissa::stored_fp8_test
