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
  EXPECT_TRUE(matches("layers\\.\\d{,2}\\.(mlp|[{,2}]{,})", "layers.11.{{,,22}}"));
  EXPECT_FALSE(matches("layers\\.\\d{,2}", "layers.111"));
  EXPECT_TRUE(matches("\\{,2}[]{,2}]", "{,2}]")) << "a brace that is escaped or in a set repeats nothing";
  EXPECT_TRUE(matches("a{,b", "a{,b"));
  EXPECT_TRUE(matches("a{,2", "a{,2"));
  EXPECT_TRUE(matches("\\w.", "\u00e9\u00e8")) << "characters, not bytes";
  EXPECT_FALSE(matches(".*", "caf\xe9")) << "Python has no name that is not UTF-8";
}

TEST(ModuleNames, ExpressionsThatAreTooLargeAreRefused) {
  const auto error = [](const std::string& expression) {
    return error_of([&] { ModuleNames names(expression); });
  };
  EXPECT_THAT(error("((a{99999999999999999999999999999999999}){99}){99}"), HasSubstr("number too big"));
  EXPECT_THAT(error("((((a{99}){99}){99}){99}){99}"), HasSubstr("too large"));
  EXPECT_THAT(error(std::string(4097, 'a')), HasSubstr("4097 bytes; at most 4096"));
  EXPECT_THAT(error("(){0,24000}a"), HasSubstr("too large"));
  EXPECT_TRUE(ModuleNames(nested(64)).matches("a"));
  EXPECT_TRUE(ModuleNames(std::string(1024, 'a')).matches(std::string(1024, 'a')));
  EXPECT_THAT(error(nested(2000)), HasSubstr("nested"));
}

TEST(ModuleNames, PatternsAreThoseOfPeft) {
  const auto rank_of = [](const char* pattern, const char* name) {
    LoraConfig config;
    config.rank_pattern = {{pattern, 4}};
    check_lora_config(config);
    return config.rank_of(name);
  };
  EXPECT_EQ(rank_of("([ab])\\.\\3", "x.a.a"), 4) << "PEFT's own groups count";
  EXPECT_EQ(rank_of("([ab])\\.\\3", "x.a.b"), 8);
  for (const char* const refused : {"\\Qabc", "(?x)abc#c", "(*UCP)abc", "a(", "\\4"})
    EXPECT_THAT(error_of([&] { rank_of(refused, "abc"); }), HasSubstr("rank_pattern has the key")) << refused;
  EXPECT_THAT(error_of([&] { rank_of(nested(2000).c_str(), "abc"); }), HasSubstr("rank_pattern has the key"));
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
  EXPECT_FALSE(ModuleNames("(.*)*x").matches("blocks.0.attention.query_projection"));
  EXPECT_FALSE(ModuleNames("(a|a)*b").matches(name));
  LoraConfig config;
  config.rank_pattern = {{"(.*)*x", 4}};
  EXPECT_EQ(config.rank_of("blocks.0.attention.query_projection"), config.r);
  config.rank_pattern = {{"(a|a)*[bc]", 4}};
  EXPECT_NO_THROW(check_lora_config(config));
  EXPECT_THAT(error_of([&] { config.rank_of(name); }), HasSubstr("match limit exceeded"));
  EXPECT_EQ(config.rank_of("qkv"), config.r);
}

}  // namespace
}  // namespace mantissa::module_names_test
