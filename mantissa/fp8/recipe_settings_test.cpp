#include "mantissa/fp8/recipe_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::recipe_settings_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refused(const std::string& name, const std::map<std::string, std::string>& settings) {
  return error_of([&] { make_fp8_recipe(name, settings); });
}

TEST(RecipeSettings, F8_40_LightningsMappingIsDelayedScaling) {
  const std::map<std::string, std::string> mapping{
      {"fp8_format", "HYBRID"}, {"amax_history_len", "16"}, {"amax_compute_algo", "max"}};
  EXPECT_EQ(make_fp8_recipe("", mapping), Fp8Recipe(DelayedScaling{.amax_history_len = 16}));
  EXPECT_EQ(make_fp8_recipe("", {}), Fp8Recipe(DelayedScaling()));
}

TEST(RecipeSettings, EachRecipeIsMadeWithItsSettings) {
  EXPECT_EQ(make_fp8_recipe("DelayedScaling", {{"fp8_format", "E4M3"},
                                               {"amax_compute_algo", "most_recent"},
                                               {"margin", "-2"},
                                               {"reduce_amax", "false"},
                                               {"fp8_dpa", "false"}}),
            Fp8Recipe(DelayedScaling{.fp8_format = Fp8Format::kE4M3,
                                     .amax_compute_algo = AmaxComputeAlgo::kMostRecent,
                                     .margin = -2,
                                     .reduce_amax = false}));
  EXPECT_EQ(make_fp8_recipe("Float8CurrentScaling", {{"power_2_scale", "true"}, {"amax_epsilon", "0.5"}}),
            Fp8Recipe(Float8CurrentScaling{.scale = {.power_of_two = true, .epsilon = 0.5F}}));
  EXPECT_EQ(
      make_fp8_recipe("Float8BlockScaling",
                      {{"fp8_format", "HYBRID"}, {"power_2_scale", "false"}, {"amax_epsilon", "1"}}),
      Fp8Recipe(Float8BlockScaling{.fp8_format = Fp8Format::kHybrid, .power_of_two = false, .epsilon = 1}));
  EXPECT_EQ(make_fp8_recipe("MXFP8BlockScaling", {{"enable_2d_quantization", "true"}}),
            Fp8Recipe(MXFP8BlockScaling{.enable_2d_quantization = true}));
  EXPECT_EQ(
      make_fp8_recipe("NVFP4BlockScaling", {{"disable_rht", "true"},
                                            {"disable_stochastic_rounding", "false"},
                                            {"disable_2d_quantization", "true"}}),
      Fp8Recipe(NVFP4BlockScaling{.random_hadamard_transform = false, .enable_2d_quantization = false}));
  for (const std::string& name : fp8_recipe_names())
    EXPECT_EQ(recipe_name(make_fp8_recipe(name, {})), name) << "the defaults are valid";
}

TEST(RecipeSettings, F8_40_UnknownNamesAndKeysAreRefusedWithTheChoices) {
  EXPECT_THAT(refused("DelayedScalin", {}),
              AllOf(HasSubstr("'DelayedScalin'"), HasSubstr("did you mean 'DelayedScaling'"),
                    HasSubstr("NVFP4BlockScaling")));
  EXPECT_THAT(refused("", {{"amax_history", "16"}}),
              AllOf(HasSubstr("DelayedScaling has no setting 'amax_history'"),
                    HasSubstr("did you mean 'amax_history_len'"), HasSubstr("it has fp8_format, ")));
  EXPECT_THAT(refused("MXFP8BlockScaling", {{"margin", "1"}}),
              HasSubstr("it is a setting of DelayedScaling; it has fp8_format, enable_2d_quantization"));
}

TEST(RecipeSettings, F8_26_ValuesThatAreNoneAreRefused) {
  EXPECT_THAT(refused("", {{"fp8_format", "E5M2"}}), AllOf(HasSubstr("E5M2 alone"), HasSubstr("HYBRID")));
  EXPECT_THAT(
      refused("Float8CurrentScaling", {{"fp8_format", "hybrid"}}),
      AllOf(HasSubstr("Float8CurrentScaling: fp8_format 'hybrid'"), HasSubstr("choose HYBRID or E4M3")));
  EXPECT_THAT(refused("", {{"amax_history_len", "0"}}), HasSubstr("amax_history_len is 0"));
  EXPECT_THAT(refused("", {{"amax_history_len", "many"}}),
              HasSubstr("DelayedScaling: amax_history_len 'many'"));
  EXPECT_THAT(refused("", {{"amax_compute_algo", "mean"}}), HasSubstr("choose max or most_recent"));
  EXPECT_THAT(refused("", {{"reduce_amax", "1"}}), HasSubstr("choose true or false"));
  EXPECT_THAT(refused("", {{"fp8_mha", "true"}}),
              HasSubstr("fp8_mha true: attention's inputs and results stay"));
  EXPECT_THAT(refused("MXFP8BlockScaling", {{"fp8_dpa", "true"}}),
              HasSubstr("it is a setting of DelayedScaling, Float8CurrentScaling"));
  for (const char* const epsilon : {"-1", "1e300"})
    EXPECT_THAT(refused("Float8BlockScaling", {{"amax_epsilon", epsilon}}), HasSubstr("choose 0 or more"));
}

TEST(RecipeSettings, AnIntervalIsAcceptedWithAWarning) {
  const Warnings warnings;
  EXPECT_EQ(make_fp8_recipe("", {{"interval", "3"}}), Fp8Recipe(DelayedScaling()));
  EXPECT_THAT(warnings.texts, testing::ElementsAre(HasSubstr("DelayedScaling: interval 3 has no effect")));
}

TEST(RecipeSettings, SwitchesNeedNoValue) {
  EXPECT_FALSE(needs_value("", "reduce_amax"));
  EXPECT_TRUE(needs_value("", "margin"));
  EXPECT_FALSE(needs_value("NVFP4BlockScaling", "margin")) << "it has no such setting";
}

TEST(RecipeSettings, ARecipeWithAFunctionEqualsNoOther) {
  const DelayedScaling plain, own{.amax_compute = [](const at::Tensor&history) { return history[0]; }};
  EXPECT_EQ(plain, DelayedScaling());
  EXPECT_FALSE(own == own);
  EXPECT_FALSE(plain == DelayedScaling{.margin = 1});
}

}  // namespace
}  // namespace mantissa::recipe_settings_test
