#include "mantissa/core/suggest.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

TEST(Suggest, FindsTheTypo) {
  EXPECT_EQ(nearest_name("precison", {"device", "precision", "seed"}), "precision");
  EXPECT_EQ(did_you_mean("BF16-mixed", {"16-mixed", "bf16-mixed"}), "; did you mean 'bf16-mixed'?");
}

TEST(Suggest, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("banana", {"device", "seed"}), "");
  EXPECT_EQ(nearest_name("", {"device"}), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(did_you_mean("banana", {"seed"}), "");
}

TEST(Suggest, JoinsNames) {
  EXPECT_EQ(join_names({}), "");
  EXPECT_EQ(join_names({"a", "b"}), "a, b");
}

TEST(Suggest, TheOnlyNameThatContainsTheWordIsMeant) {
  EXPECT_EQ(nearest_name("epochs", {"max-epochs", "max-steps"}), "max-epochs");
  EXPECT_EQ(nearest_name("max", {"max-epochs", "max-steps"}), "");  // either could be
}

}  // namespace
}  // namespace mantissa
