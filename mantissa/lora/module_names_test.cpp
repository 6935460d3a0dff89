#include "mantissa/lora/module_names.h"

#include "mantissa/lora/test_support_internal.h"

namespace mantissa::module_names_test {
namespace {

using testing::HasSubstr;

std::string nested(size_t depth) { return std::string(depth, '(') + "a" + std::string(depth, ')'); }

TEST(ModuleNames, ExpressionsThatWouldOverflowTheStackAreRefused) {
  EXPECT_TRUE(ModuleNames(nested(64)).matches("a"));
  EXPECT_THAT(error_of([] { ModuleNames names(nested(65)); }), HasSubstr("it has more than 64 parentheses"));
  EXPECT_THAT(error_of([] { ModuleNames names(nested(30000)); }),
              HasSubstr("60001 characters; at most 1024"));
  EXPECT_TRUE(ModuleNames(std::string(1024, 'a')).matches(std::string(1024, 'a')));
  LoraConfig config;
  config.rank_pattern = {{nested(30000), 4}};
  EXPECT_THAT(error_of([&] { check_lora_config(config); }), HasSubstr("rank_pattern has the key"));
}

TEST(ModuleNames, AnExpressionThatCanMatchInManyWaysIsMatchedAtOnce) {
  // With backtracking this takes longer than the universe has existed.
  EXPECT_FALSE(ModuleNames("(.*)*x").matches("blocks.0.attention.query_projection"));
  EXPECT_FALSE(ModuleNames("(a|a)*b").matches(std::string(200, 'a')));
  LoraConfig config;
  config.rank_pattern = {{"(.*)*x", 4}};
  EXPECT_EQ(config.rank_of("blocks.0.attention.query_projection"), config.r);
}

}  // namespace
}  // namespace mantissa::module_names_test
