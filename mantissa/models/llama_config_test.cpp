#include "mantissa/models/llama_config.h"

#include <nlohmann/json.hpp>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::llama_config_test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

/// The config.json of Llama 3.2 1B, as Hugging Face distributes it.
Json llama32() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

std::string error_of(const std::string& text) {
  return mantissa::error_of<c10::ValueError>([&] { parse_llama_config(text, "dir/config.json"); });
}

std::string error_with(const std::string& field, const Json& value) {
  Json json = llama32();
  json[field] = value;
  return error_of(json.dump());
}

TEST(LlamaConfig, ReadsLlama32) {
  const LlamaOptions o = parse_llama_config(llama32().dump(), "f");
  EXPECT_EQ(o.vocab_size, 128256);
  EXPECT_EQ(o.hidden_size, 2048);
  EXPECT_EQ(o.intermediate_size, 8192);
  EXPECT_EQ(o.num_hidden_layers, 16);
  EXPECT_EQ(o.num_attention_heads, 32);
  EXPECT_EQ(o.num_key_value_heads, 8);
  EXPECT_EQ(o.channels(), 64);
  EXPECT_EQ(o.max_position_embeddings, 131072);
  EXPECT_EQ(o.rms_norm_eps, 1e-5);
  EXPECT_EQ(o.rope_theta, 500000);
  EXPECT_EQ(o.rope_scaling, (RopeScaling{.factor = 32, .original_max_position_embeddings = 8192}));
  EXPECT_TRUE(o.tie_word_embeddings);
  EXPECT_EQ(o.bos_token_id, 128000);
  EXPECT_EQ(o.eos_token_id, (std::vector<int64_t>{128001, 128008, 128009}));
  EXPECT_EQ(o.pad_token_id, std::nullopt);
}

TEST(LlamaConfig, MissingFieldsHaveTheDefaultsOfTransformers) {
  const LlamaOptions o = parse_llama_config(
      R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
          "num_hidden_layers": 32, "num_attention_heads": 32})",
      "f");
  EXPECT_EQ(o, LlamaOptions{});
  EXPECT_EQ(o.key_value_heads(), 32);
}

TEST(LlamaConfig, WhatIsWrittenIsReadBack) {
  LlamaOptions o = parse_llama_config(llama32().dump(), "f");
  EXPECT_EQ(parse_llama_config(make_llama_config(o, at::kHalf), "f"), o);
  o.rope_scaling = RopeScaling{.kind = RopeScaling::Kind::kLinear, .factor = 2};
  o.attention_bias = o.mlp_bias = true;
  o.bos_token_id = std::nullopt, o.eos_token_id = {}, o.pad_token_id = 7;
  EXPECT_EQ(parse_llama_config(make_llama_config(o, at::kFloat), "f").pad_token_id, 7);
  const LlamaOptions again = parse_llama_config(make_llama_config(o, at::kFloat), "f");
  EXPECT_EQ(again.rope_scaling->kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(again.bos_token_id, std::nullopt);
  EXPECT_TRUE(again.eos_token_id.empty());
  EXPECT_TRUE(again.attention_bias && again.mlp_bias);
  EXPECT_EQ(Json::parse(make_llama_config(o, at::kBFloat16))["torch_dtype"], "bfloat16");
  EXPECT_THROW(make_llama_config(o, at::kChar), c10::ValueError);
}

TEST(LlamaConfig, ReadsTheFieldsOfTransformers5) {
  Json json = llama32();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_theta"] = 10000.0;
  json.erase("rope_scaling"), json.erase("rope_theta");
  const LlamaOptions o = parse_llama_config(json.dump(), "f");
  EXPECT_EQ(o.rope_theta, 10000);
  EXPECT_EQ(o.rope_scaling->factor, 32);
}

TEST(LlamaConfig, RefusesOtherArchitectures) {
  EXPECT_THAT(error_with("model_type", "qwen2"),
              HasSubstr("'dir/config.json': model_type is 'qwen2'; only a llama can be read here"));
  EXPECT_THAT(error_with("architectures", Json::array({"LlamaForSequenceClassification"})),
              HasSubstr("architectures [\"LlamaForSequenceClassification\"] is not"));
}

TEST(LlamaConfig, RefusesFeaturesThatItLacks) {
  EXPECT_THAT(error_with("hidden_act", "gelu"),
              HasSubstr("hidden_act \"gelu\" is not supported, only \"silu\""));
  EXPECT_THAT(error_with("attention_dropout", 0.1), HasSubstr("attention_dropout 0.1 is not supported"));
  EXPECT_THAT(error_with("sliding_window", 4096), HasSubstr("sliding_window 4096"));
  EXPECT_EQ(error_with("sliding_window", nullptr), "no error");
  EXPECT_THAT(error_with("quantization_config", Json{{"load_in_4bit", true}}),
              HasSubstr("already quantized; give the model in float"));
  EXPECT_THAT(error_with("rope_scaling", Json{{"rope_type", "yarn"}, {"factor", 2}}),
              HasSubstr("rope_scaling: the kind 'yarn' of rope_scaling is not supported"));
  EXPECT_THAT(error_with("use_qk_norm", true),
              HasSubstr("the field 'use_qk_norm' is unknown, and may change the model"));
  EXPECT_THAT(error_with("num_key_value_head", 2), HasSubstr("did you mean 'num_key_value_heads'?"));
}

TEST(LlamaConfig, RefusesValuesByName) {
  EXPECT_THAT(error_with("hidden_size", "2048"), HasSubstr("hidden_size \"2048\" is no whole number"));
  EXPECT_THAT(error_with("hidden_size", 2048.5), HasSubstr("is no whole number"));
  EXPECT_THAT(error_with("vocab_size", uint64_t{1} << 63), HasSubstr("is too large"));
  EXPECT_THAT(error_with("vocab_size", -(int64_t{1} << 40)), HasSubstr("is too small"));
  EXPECT_THAT(error_with("num_hidden_layers", 1'000'000'000),
              HasSubstr("'dir/config.json': num_hidden_layers 1000000000 is too large; at most 10000"));
  EXPECT_EQ(error_with("num_hidden_layers", 10'000), "no error");
  EXPECT_THAT(error_with("vocab_size", int64_t{1} << 31),
              HasSubstr("vocab_size 2147483648 is too large; at most 2097152"));
  EXPECT_EQ(error_with("vocab_size", 2097152), "no error");
  EXPECT_THAT(error_with("rope_theta", "x"), HasSubstr("rope_theta \"x\" is no number"));
  EXPECT_THAT(error_with("mlp_bias", 1), HasSubstr("mlp_bias 1 is neither true nor false"));
  EXPECT_THAT(error_with("model_type", 3), HasSubstr("model_type 3 is no text"));
  for (const char* size : {"num_key_value_heads", "head_dim"}) {
    EXPECT_THAT(error_with(size, 0), HasSubstr(std::string(size) + " 0 is not above 0"));
    EXPECT_THAT(error_with(size, -2), HasSubstr(std::string(size) + " -2 is not above 0"));
    EXPECT_EQ(error_with(size, nullptr), "no error");
  }
  for (const Json& id : {Json(128256), Json(-1), Json{1, 128256}})
    EXPECT_THAT(error_with("eos_token_id", id),
                HasSubstr("is outside of the vocabulary, 0 to 128255; give the ids that end a text"));
  EXPECT_EQ(error_with("eos_token_id", 128255), "no error");
  EXPECT_EQ(error_with("eos_token_id", nullptr), "no error");
  EXPECT_THAT(error_with("num_attention_heads", 30), HasSubstr("not a multiple of num_key_value_heads 8"));
  EXPECT_THAT(error_with("rope_scaling", "llama3"), HasSubstr("rope_scaling: is no JSON object"));
  EXPECT_THAT(error_with("rope_scaling", Json{{"rope_type", "llama3"}, {"factor", 2}}),
              HasSubstr("has no low_freq_factor"));
  EXPECT_THAT(error_with("num_hidden_layers", nullptr), HasSubstr("has no num_hidden_layers"));
  EXPECT_THAT(error_of("[]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(error_of("{"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(error_of(R"({"model_type": "llama", "model_type": "llama"})"), HasSubstr("twice"));
}

}  // namespace
}  // namespace mantissa::llama_config_test
