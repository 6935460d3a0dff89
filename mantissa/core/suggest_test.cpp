#include "mantissa/core/suggest.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace mantissa::suggest_test {
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

TEST(Suggest, TwoNeighboursSwappedAreOneEdit) {
  EXPECT_EQ(nearest_name("haed", {"body", "head"}), "head");
  EXPECT_EQ(nearest_name("Haed", {"body", "head"}), "head");
  EXPECT_EQ(nearest_name("ehad", {"head"}), "head");
  EXPECT_EQ(nearest_name("haed", {"hard", "head"}), "hard") << "of two that are as near, the first";
  EXPECT_EQ(nearest_name("edah", {"head"}), "") << "letters in any order are not";
}

TEST(Suggest, MoreThanHalfOfAShortNameMustBeRight) {
  EXPECT_EQ(nearest_name("O4", {"O0", "O1"}), "");
  EXPECT_EQ(nearest_name("o2", {"O0", "O2"}), "O2") << "case is no difference";
  EXPECT_EQ(nearest_name("x", {"a", "b"}), "");
  EXPECT_EQ(nearest_name("8", {"16", "32"}), "");
  EXPECT_EQ(nearest_name("cqu", {"cpu"}), "cpu");
  EXPECT_EQ(nearest_name("lr2", {"lr"}), "lr");
}

// Comparing two names from a file letter by letter takes the product of their lengths: days for these.
TEST(Suggest, LongNamesAreNoDelay) {
  const std::string long_name(10'000'000, 'x');
  EXPECT_EQ(nearest_name(long_name, {long_name + "y"}), "");
  EXPECT_EQ(nearest_name("short", {long_name, "shor"}), "shor");
  // The search stops when nothing nearer can follow, and not earlier.
  EXPECT_EQ(nearest_name("abc", {"xyz", "bac"}), "bac");
  EXPECT_EQ(nearest_name("xyzzyabcdef", {"xyzabcdef"}), "xyzabcdef");
}

TEST(Suggest, JoinsNames) {
  EXPECT_EQ(join_names({}), "");
  EXPECT_EQ(join_names({"a", "b"}), "a, b");
}

TEST(Suggest, TheOnlyNameThatBeginsWithTheWordIsMeant) {
  const std::vector<std::string> names{"adam", "adamw", "adam8bit", "adamw8bit"};
  EXPECT_EQ(nearest_name("adam8", names), "adam8bit") << "and not adam, one edit away";
  EXPECT_EQ(nearest_name("adamw8", names), "adamw8bit");
  EXPECT_EQ(nearest_name("adamx", names), "adam") << "nothing begins so";
  EXPECT_EQ(nearest_name("ada", names), "adam") << "several begin so, and this one is the nearest";
}

TEST(Suggest, TheOnlyNameThatContainsTheWordIsMeant) {
  EXPECT_EQ(nearest_name("epochs", {"max-epochs", "max-steps"}), "max-epochs");
  EXPECT_EQ(nearest_name("max", {"max-epochs", "max-steps"}), "");  // both are possible
}

}  // namespace
}  // namespace mantissa::suggest_test
