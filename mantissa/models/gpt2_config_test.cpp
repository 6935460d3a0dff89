#include "mantissa/models/gpt2_config.h"

#include <nlohmann/json.hpp>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::gpt2_config_test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

/// The config.json of GPT-2 XL, as Hugging Face distributes it.
Json gpt2_xl() {
  return Json::parse(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024,
    "output_past": true, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
}

std::string error_of(const std::string& text) {
  return mantissa::error_of<c10::ValueError>([&] { parse_gpt2_config(text, "dir/config.json"); });
}

std::string error_with(const std::string& field, const Json& value) {
  Json json = gpt2_xl();
  json[field] = value;
  return error_of(json.dump());
}

TEST(Gpt2Config, ReadsGpt2Xl) {
  EXPECT_EQ(parse_gpt2_config(gpt2_xl().dump(), "f"), gpt2_options("gpt2-xl"));
}

TEST(Gpt2Config, MissingFieldsHaveTheDefaultsOfTransformers) {
  EXPECT_EQ(parse_gpt2_config(R"({"model_type": "gpt2"})", "f"), Gpt2Options());
}

TEST(Gpt2Config, WhatIsWrittenIsReadBack) {
  const Gpt2Options options{.vocab_size = 10,
                            .n_positions = 20,
                            .n_embd = 30,
                            .n_layer = 4,
                            .n_head = 5,
                            .n_inner = 60,
                            .activation_function = "gelu",
                            .resid_pdrop = 0.2,
                            .embd_pdrop = 0.3,
                            .attn_pdrop = 0.4,
                            .layer_norm_epsilon = 1e-3,
                            .initializer_range = 0.05,
                            .tie_word_embeddings = false,
                            .bos_token_id = std::nullopt,
                            .eos_token_id = {1, 2}};
  const std::string text = make_gpt2_config(options, at::kBFloat16);
  EXPECT_EQ(parse_gpt2_config(text, "f"), options);
  EXPECT_EQ(Json::parse(text)["torch_dtype"], "bfloat16");
  EXPECT_EQ(parse_gpt2_config(make_gpt2_config({}, at::kFloat), "f"), Gpt2Options());
  EXPECT_THROW(make_gpt2_config({}, at::kInt), c10::ValueError);
}

TEST(Gpt2Config, RefusesWhatItCannotCompute) {
  EXPECT_THAT(error_of("{"), HasSubstr("'dir/config.json'"));
  EXPECT_THAT(error_of("[]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(error_with("model_type", "llama"), HasSubstr("model_type is 'llama'"));
  EXPECT_THAT(error_with("architectures", Json::array({"GPT2ForSequenceClassification"})),
              HasSubstr("is not [\"GPT2LMHeadModel\"]"));
  EXPECT_THAT(error_with("activation_function", "relu"),
              HasSubstr("activation_function 'relu' is not supported"));
  EXPECT_THAT(error_with("scale_attn_weights", false),
              HasSubstr("scale_attn_weights false is not supported"));
  EXPECT_THAT(error_with("scale_attn_by_inverse_layer_idx", true),
              HasSubstr("scale_attn_by_inverse_layer_idx true"));
  EXPECT_THAT(error_with("add_cross_attention", true), HasSubstr("add_cross_attention true"));
  EXPECT_THAT(error_with("quantization_config", Json::object()), HasSubstr("already quantized"));
  EXPECT_THAT(error_with("n_head", 7), HasSubstr("n_embd 1600 is not a multiple of n_head 7"));
  EXPECT_THAT(error_with("n_embd", "wide"), HasSubstr("n_embd \"wide\" is no whole number"));
  EXPECT_THAT(error_with("n_layer", 10'001), HasSubstr("n_layer 10001 is too large; at most 10000"));
  EXPECT_THAT(error_with("vocab_size", 2097153),
              HasSubstr("vocab_size 2097153 is too large; at most 2097152"));
  EXPECT_THAT(error_with("n_layers", 3),
              HasSubstr("the field 'n_layers' is unknown; did you mean 'n_layer'?"));
  EXPECT_EQ(error_with("scale_attn_weights", true), "no error");
}

}  // namespace
}  // namespace mantissa::gpt2_config_test
