#include "mantissa/lora/lora_config.h"
#include "mantissa/lora/test_support_internal.h"

namespace mantissa::adapter_config_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

LoraConfig parsed(const std::string& text) { return parse_adapter_config(text, "a.json"); }

/// Returns the error for a configuration with this text among its settings.
std::string error_with(const std::string& setting) {
  return error_of(
      [&] { parsed(R"({"peft_type": "LORA", "r": 4, "target_modules": ["fc"], )" + setting + "}"); });
}

TEST(AdapterConfig, IsReadAsItWasWritten) {
  const LoraConfig config{.r = 16,
                          .lora_alpha = 2.5,
                          .lora_dropout = 0.05,
                          .use_rslora = true,
                          .use_dora = true,
                          .target_modules = {"qkv", "up"},
                          .exclude_modules = "head\\d",
                          .rank_pattern = {{"up", 4}},
                          .alpha_pattern = {{"up", 3}},
                          .base_model_name_or_path = "models/ä \"b\""};
  EXPECT_EQ(parsed(to_adapter_config(config)), config);
  LoraConfig all;
  all.target_modules = "all-linear";
  EXPECT_EQ(parsed(to_adapter_config(all)), all);
  EXPECT_THAT(to_adapter_config(config), AllOf(HasSubstr("\"r\": 16"), HasSubstr("\"lora_alpha\": 2.5"),
                                               HasSubstr("\"peft_type\": \"LORA\"")));
  EXPECT_THAT(to_adapter_config(all), HasSubstr("\"lora_alpha\": 8,"));
}

TEST(AdapterConfig, ReadsAllThatPeftWrites) {
  // PEFT 0.18.1's file.
  const LoraConfig config = parsed(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null,
    "auto_mapping": {"base_model_class": "M", "parent_library": "__main__"},
    "base_model_name_or_path": null, "bias": "none", "corda_config": null, "ensure_weight_tying": false,
    "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
    "loftq_config": {}, "lora_alpha": 4, "lora_bias": false, "lora_dropout": 0.0, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.18.1",
    "qalora_group_size": 16, "r": 2, "rank_pattern": {}, "revision": null, "target_modules": ["fc"],
    "target_parameters": null, "task_type": null, "trainable_token_indices": null, "use_dora": true,
    "use_qalora": false, "use_rslora": false, "a_later_setting": [], "another": null})");
  EXPECT_EQ(config, (LoraConfig{.r = 2, .lora_alpha = 4, .use_dora = true, .target_modules = {"fc"}}));
}

TEST(AdapterConfig, SettingsThatChangeTheResultAreRefusedByName) {
  EXPECT_THAT(error_with(R"("bias": "all")"), AllOf(HasSubstr("'a.json'"), HasSubstr("bias to \"all\"")));
  EXPECT_THAT(error_with(R"("modules_to_save": ["head"])"), HasSubstr("modules_to_save to [\"head\"]"));
  EXPECT_THAT(error_with(R"("fan_in_fan_out": true)"), HasSubstr("fan_in_fan_out to true"));
  EXPECT_THAT(error_with(R"("layers_to_transform": [0])"), HasSubstr("layers_to_transform"));
  EXPECT_THAT(error_with(R"("lora_bias": true)"), HasSubstr("lora_bias"));
  EXPECT_THAT(error_with(R"("use_qalora": true)"), HasSubstr("use_qalora"));
  EXPECT_THAT(error_with(R"("a_later_setting": 3)"), HasSubstr("a_later_setting to 3"));
  EXPECT_THAT(error_with(R"("init_lora_weights": "pissa")"), HasSubstr("init_lora_weights to \"pissa\""));
  EXPECT_EQ(error_with(R"("init_lora_weights": "gaussian")"), "no error");
}

TEST(AdapterConfig, WrongTypesAndRangesAreErrors) {
  EXPECT_THAT(error_with(R"("use_dora": 1)"), HasSubstr("needs true or false for use_dora; got 1"));
  EXPECT_THAT(error_with(R"("lora_alpha": "8")"), HasSubstr("needs a number for lora_alpha"));
  EXPECT_THAT(error_with(R"("lora_dropout": 1.5)"),
              AllOf(HasSubstr("adapter_config: 'a.json' has"), HasSubstr("lora_dropout must be")));
  EXPECT_THAT(error_with(R"("lora_alpha": 1e999)"), HasSubstr("a.json"));
  EXPECT_THAT(error_with(R"("rank_pattern": [1])"), HasSubstr("needs an object for rank_pattern"));
  EXPECT_THAT(error_with(R"("rank_pattern": {"a": 1.5})"), HasSubstr("needs an integer"));
  EXPECT_THAT(error_with(R"("rank_pattern": {"a": 18446744073709551615})"), HasSubstr("needs an integer"));
  EXPECT_THAT(error_with(R"("alpha_pattern": {"[": 1})"), HasSubstr("alpha_pattern has the key '['"));
  EXPECT_THAT(error_with(R"("exclude_modules": [1])"), HasSubstr("needs a text for exclude_modules"));
  EXPECT_THAT(error_with(R"("exclude_modules": "(")"),
              AllOf(HasSubstr("'a.json'"), HasSubstr("regular expression")));
  EXPECT_THAT(error_with(R"("base_model_name_or_path": {"a": 1})"), HasSubstr("base_model_name_or_path"));
  EXPECT_THAT(error_of([] { parsed(R"({"peft_type": "LORA", "r": -1, "target_modules": "x"})"); }),
              AllOf(HasSubstr("'a.json'"), HasSubstr("r must be 1")));
}

TEST(AdapterConfig, OtherTextsAreErrors) {
  for (const char* const text : {"", "{", "[]", "3", "null", "{\"peft_type\": \"LORA\"", "\xff"})
    EXPECT_THAT(error_of([&] { parsed(text); }), HasSubstr("'a.json'")) << text;
  EXPECT_THAT(error_of([] { parsed("{}"); }), HasSubstr("peft_type nothing"));
  EXPECT_THAT(error_of([] { parsed(R"({"peft_type": "IA3"})"); }), HasSubstr("\"IA3\""));
  EXPECT_THAT(error_of([] { parsed(R"({"peft_type": "LORA"})"); }), HasSubstr("names no target_modules"));
  EXPECT_THAT(error_of([] { parsed(R"({"peft_type": "LORA", "target_modules": []})"); }),
              HasSubstr("names no target_modules"));
  EXPECT_THAT(error_of([] { parsed(R"({"r": 1, "r": 2})"); }), HasSubstr("'r' twice"));
  EXPECT_THAT(error_of([] { parsed(std::string(2000, '[')); }), HasSubstr("nests deeper"));
}

TEST(AdapterConfig, WritingChecksTheSettings) {
  EXPECT_THAT(error_of([] { to_adapter_config({.r = 0}); }), HasSubstr("r must be"));
}

}  // namespace
}  // namespace mantissa::adapter_config_test
