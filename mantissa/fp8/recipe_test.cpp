#include "mantissa/fp8/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::recipe_test {
namespace {

using testing::HasSubstr;

TEST(Recipe, HybridKeepsGradientsInE5M2) {
  EXPECT_EQ(fp8_dtype(fp8_format_of("HYBRID"), Fp8Pass::kForward), at::kFloat8_e4m3fn);
  EXPECT_EQ(fp8_dtype(fp8_format_of("HYBRID"), Fp8Pass::kBackward), at::kFloat8_e5m2);
  EXPECT_EQ(fp8_dtype(fp8_format_of("E4M3"), Fp8Pass::kForward), at::kFloat8_e4m3fn);
  EXPECT_EQ(fp8_dtype(fp8_format_of("E4M3"), Fp8Pass::kBackward), at::kFloat8_e4m3fn);
}

TEST(Recipe, E5M2AloneIsRefused) {
  EXPECT_THAT(error_of([] { fp8_format_of("E5M2"); }), HasSubstr("use HYBRID"));
  EXPECT_THAT(error_of([] { fp8_format_of("hybrid"); }), HasSubstr("got 'hybrid'; use HYBRID or E4M3"));
}

TEST(Recipe, HasTheNameOfItsFormat) {
  EXPECT_EQ(fp8_format_name(DelayedScaling{}), "HYBRID");
  EXPECT_EQ(fp8_format_name(MXFP8BlockScaling{}), "E4M3");
  EXPECT_EQ(fp8_format_name(NVFP4BlockScaling{}), "E2M1");
}

TEST(Recipe, AHistoryHasSteps) {
  EXPECT_THAT(error_of([] { check_recipe({.amax_history_len = 0}); }),
              HasSubstr("a history has at least 1 step"));
  for (const int64_t margin : {int64_t{127}, int64_t{-127}, std::numeric_limits<int64_t>::min()})
    EXPECT_THAT(error_of([=] { check_recipe({.margin = margin}); }),
                HasSubstr("use a margin from -126 to 126"));
  EXPECT_EQ(error_of([] { check_recipe({.amax_history_len = 1, .margin = -3}); }), "no error");
}

}  // namespace
}  // namespace mantissa::recipe_test
