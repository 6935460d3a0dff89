#include "mantissa/models/llama.h"

#include <cmath>
#include <functional>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::llama_test {
namespace {

LlamaOptions small() {
  return {.vocab_size = 10,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 8};
}

at::Tensor some_tokens(int64_t batch, int64_t length) { return at::randint(10, {batch, length}, at::kLong); }

std::string error_with(const std::function<void(LlamaOptions&)>& change) {
  LlamaOptions options = small();
  change(options);
  return error_of<c10::ValueError>([&] { Llama{options}; });
}

TEST(Llama, NamesOfParameters) {
  const auto keys = Llama(small())->named_parameters().keys();
  EXPECT_EQ(keys.size(), 2 * 9 + 3U);
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight", "lm_head.weight"})
    EXPECT_THAT(keys, testing::Contains(name));
  EXPECT_TRUE(Llama(small())->named_buffers().is_empty()) << "Hugging Face's files have no buffers";
}

TEST(Llama, BiasesAndTiedEmbeddingsAreOptional) {
  LlamaOptions options = small();
  options.attention_bias = options.mlp_bias = options.tie_word_embeddings = true;
  Llama model(options);
  const auto keys = model->named_parameters().keys();
  EXPECT_EQ(keys.size(), 2 * (9 + 7) + 2U);
  EXPECT_THAT(keys, testing::Contains("model.layers.0.self_attn.o_proj.bias"));
  EXPECT_THAT(keys, testing::Contains("model.layers.0.mlp.down_proj.bias"));
  EXPECT_THAT(keys, testing::Not(testing::Contains("lm_head.weight")));
  model(some_tokens(2, 8)).square().mean().backward();
  for (const auto& item : model->named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << item.key();
}

TEST(Llama, ATiedModelEqualsOneWhoseHeadHasTheEmbeddings) {
  LlamaOptions options = small();
  options.tie_word_embeddings = true;
  Llama tied(options);
  Llama plain(small());
  const at::NoGradGuard no_grad;
  auto to = plain->named_parameters();
  for (const auto& item : tied->named_parameters()) to[item.key()].copy_(item.value());
  to["lm_head.weight"].copy_(to["model.embed_tokens.weight"]);
  const at::Tensor tokens = some_tokens(2, 5);
  EXPECT_TRUE(at::equal(tied(tokens), plain(tokens)));
}

TEST(Llama, GroupsOfHeadsEqualRepeatedKeysAndValues) {
  Llama grouped(small());
  LlamaOptions options = small();
  options.num_key_value_heads = 0;
  Llama whole(options);
  const at::NoGradGuard no_grad;
  auto to = whole->named_parameters();
  for (const auto& item : grouped->named_parameters()) {
    at::Tensor value = item.value();
    if (value.sizes() != to[item.key()].sizes())  // [2 * 4, 16] -> each head of 4 channels twice
      value = value.view({2, 1, 4, 16}).expand({2, 2, 4, 16}).reshape({16, 16});
    to[item.key()].copy_(value);
  }
  const at::Tensor tokens = some_tokens(2, 7);
  EXPECT_TRUE(at::allclose(grouped(tokens), whole(tokens), 1e-5, 1e-7));
}

TEST(Llama, APositionSeesThePastAndNotTheFuture) {
  torch::manual_seed(4);
  Llama model(small());
  at::Tensor tokens = some_tokens(1, 8);
  const at::Tensor before = model(tokens);
  tokens[0][5] = (tokens[0][5] + 1) % 10;
  const at::Tensor after = model(tokens);
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 5), after.narrow(1, 0, 5), 1e-5, 1e-7));
  EXPECT_FALSE(at::allclose(before.narrow(1, 5, 1), after.narrow(1, 5, 1), 1e-5, 1e-7));
  EXPECT_FALSE(at::allclose(before.narrow(1, 7, 1), after.narrow(1, 7, 1), 1e-5, 1e-7));
}

TEST(Llama, StartsFromItsDistribution) {
  torch::manual_seed(3);
  LlamaOptions options = small();
  options.hidden_size = 128, options.mlp_bias = true, options.pad_token_id = 3,
  options.initializer_range = 0.05;
  Llama model(options);
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& p = item.value();
    if (p.dim() == 2) {
      EXPECT_NEAR(p.std().item<double>() / 0.05, 1, 0.1) << item.key();
    } else {
      EXPECT_TRUE((p == (item.key().ends_with("bias") ? 0 : 1)).all().item<bool>()) << item.key();
    }
  }
  const at::Tensor padding = model->named_parameters()["model.embed_tokens.weight"][3];
  EXPECT_TRUE((padding == 0).all().item<bool>());
}

TEST(Llama, TheVectorOfPaddingIsNotTrained) {
  LlamaOptions options = small();
  options.pad_token_id = 3;
  Llama model(options);
  model(at::arange(8).unsqueeze(0)).square().mean().backward();
  const at::Tensor grad = model->named_parameters()["model.embed_tokens.weight"].grad();
  EXPECT_EQ(grad[3].abs().max().item<float>(), 0);
  EXPECT_GT(grad[4].abs().max().item<float>(), 0);
}

TEST(Llama, RefusesWhatIsNotItsTokens) {
  Llama model(small());
  EXPECT_THAT(error_of<c10::ValueError>([&] { model(some_tokens(2, 9)); }),
              testing::HasSubstr("Llama: a sequence of 9 tokens is longer than the context of 8"));
  EXPECT_THAT(error_of<c10::IndexError>([&] { model(some_tokens(2, 4).fill_(10)); }),
              testing::HasSubstr("to 10, and the vocabulary is 0 to 9"));
  EXPECT_THROW(model(at::zeros({2, 4})), c10::TypeError);
  EXPECT_THROW(model(some_tokens(2, 4).view({8})), c10::ValueError);
  EXPECT_TRUE(model(some_tokens(1, 1)).isfinite().all().item<bool>());
}

TEST(Llama, RefusesOptionsOutOfRangeByName) {
  using testing::HasSubstr;
  EXPECT_THAT(error_with([](auto& o) { o.vocab_size = 0; }), HasSubstr("Llama: vocab_size is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.intermediate_size = -1; }), HasSubstr("intermediate_size is -1"));
  EXPECT_THAT(error_with([](auto& o) { o.num_key_value_heads = 3; }),
              HasSubstr("4 is not a multiple of num_key_value_heads 3"));
  EXPECT_THAT(error_with([](auto& o) { o.num_key_value_heads = -2; }), HasSubstr("num_key_value_heads -2"));
  EXPECT_THAT(error_with([](auto& o) { o.hidden_size = 18; }), HasSubstr("hidden_size 18"));
  EXPECT_THAT(error_with([](auto& o) { o.head_dim = -4; }), HasSubstr("head_dim is -4"));
  EXPECT_THAT(error_with([](auto& o) { o.head_dim = 3; }), HasSubstr("3 channels"));
  EXPECT_THAT(error_with([](auto& o) { o.rms_norm_eps = 0; }), HasSubstr("rms_norm_eps is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.rope_theta = INFINITY; }), HasSubstr("rope_theta is inf"));
  EXPECT_THAT(error_with([](auto& o) { o.pad_token_id = 10; }), HasSubstr("pad_token_id 10"));
  EXPECT_THAT(error_with([](auto& o) { o.pad_token_id = -1; }), HasSubstr("pad_token_id -1"));
  EXPECT_THAT(error_with([](auto& o) { o.rope_scaling = RopeScaling{.factor = 0}; }), HasSubstr("factor 0"));
  EXPECT_THAT(error_with([](auto& o) { o.rope_scaling = RopeScaling{.high_freq_factor = 1}; }),
              HasSubstr("low_freq_factor 1 and high_freq_factor 1"));
  EXPECT_THAT(
      error_with([](auto& o) { o.rope_scaling = RopeScaling{.original_max_position_embeddings = 0}; }),
      HasSubstr("original_max_position_embeddings of rope_scaling is 0"));
  EXPECT_EQ(error_with([](auto& o) { o.head_dim = 6, o.hidden_size = 18; }), "no error");
}

}  // namespace
}  // namespace mantissa::llama_test
