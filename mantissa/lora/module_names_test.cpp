#include "mantissa/lora/module_names.h"

#include "mantissa/lora/test_support_internal.h"

namespace mantissa::module_names_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string nested(size_t depth) { return std::string(depth, '(') + "a" + std::string(depth, ')'); }

TEST(ModuleNames, ExpressionsMatchWholeNamesAsInPython) {
  const auto matches = [](const char* expression, const char* name) {
    return ModuleNames(expression).matches(name);
  };
  EXPECT_TRUE(matches("a|ab", "ab")) << "the first alternative that matches all of the name";
  EXPECT_FALSE(matches("b", "ab"));
  EXPECT_FALSE(matches("a", "ab"));
  EXPECT_TRUE(matches("([ab])\\.\\1", "a.a"));
  EXPECT_FALSE(matches("([ab])\\.\\1", "a.b"));
  EXPECT_TRUE(matches("(?P<side>up|down)_(?P=side)", "up_up"));
  EXPECT_TRUE(matches("(?!vision).*\\.q_proj", "text.q_proj"));
  EXPECT_FALSE(matches("(?!vision).*\\.q_proj", "vision.q_proj"));
  EXPECT_TRUE(matches("layers\\.\\d{1,2}\\.\\w+(?<!_proj)", "layers.11.gate"));
  EXPECT_TRUE(matches("\\w.", "\u00e9\u00e8")) << "characters, not bytes";
  EXPECT_FALSE(matches(".*", "caf\xe9")) << "Python has no name that is not UTF-8";
}

TEST(ModuleNames, ExpressionsThatAreTooLargeAreRefused) {
  const auto error = [](const std::string& expression) {
    return error_of([&] { ModuleNames names(expression); });
  };
  EXPECT_THAT(error("((a{99999999999999999999999999999999999}){99}){99}"), HasSubstr("number too big"));
  EXPECT_THAT(error("((((a{99}){99}){99}){99}){99}"), HasSubstr("too large"));
  EXPECT_THAT(error("(){0,24000}a"), HasSubstr("too large"));
  EXPECT_TRUE(ModuleNames(nested(64)).matches("a"));
  EXPECT_THAT(error(nested(30000)), HasSubstr("nested"));
  LoraConfig config;
  config.rank_pattern = {{nested(30000), 4}};
  EXPECT_THAT(error_of([&] { check_lora_config(config); }), HasSubstr("rank_pattern has the key"));
}

TEST(ModuleNames, ManyEmptyRepetitionsDoNotOverflowTheStack) {
  EXPECT_TRUE(ModuleNames("(){0,900}a").matches("a"));
  EXPECT_TRUE(ModuleNames("(?:(a?){30}){30}").matches(std::string(900, 'a')));
}

TEST(ModuleNames, AnExpressionThatWouldTryTooManyWaysIsAnError) {
  const std::string name(200, 'a');
  // Python would take longer than the universe has existed.
  EXPECT_THAT(error_of([&] { ModuleNames("(a|a)*[bc]").matches(name); }),
              AllOf(HasSubstr("'(a|a)*[bc]' fails for the module 'aaa"), HasSubstr("match limit exceeded"),
                    HasSubstr("list the ends")));
  EXPECT_FALSE(ModuleNames("(.*)*x").matches(name)) << "there is no x";
  LoraConfig config;
  config.rank_pattern = {{"(a|a)*[bc]", 4}};
  EXPECT_NO_THROW(check_lora_config(config));
  EXPECT_THAT(error_of([&] { config.rank_of(name); }), HasSubstr("match limit exceeded"));
  EXPECT_EQ(config.rank_of("qkv"), config.r);
}

}  // namespace
}  // namespace mantissa::module_names_test
