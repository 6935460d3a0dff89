#include "mantissa/models/generate.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "mantissa/core/default_dtype.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/models/gpt.h"
#include "mantissa/models/llama.h"

namespace mantissa::generate_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocabulary = 31, kContext = 24;

std::shared_ptr<CausalModel> make(const std::string& kind) {
  torch::manual_seed(7);
  std::shared_ptr<CausalModel> model;
  if (kind == "Gpt") {
    model = std::make_shared<GptImpl>(
        GptOptions{.layers = 2, .width = 32, .heads = 4, .context = kContext, .vocabulary = kVocabulary});
  } else {
    model = std::make_shared<LlamaImpl>(LlamaOptions{.vocab_size = kVocabulary,
                                                     .hidden_size = 32,
                                                     .intermediate_size = 48,
                                                     .num_hidden_layers = 2,
                                                     .num_attention_heads = 4,
                                                     .num_key_value_heads = kind == "Llama" ? 4 : 2,
                                                     .max_position_embeddings = kContext,
                                                     .eos_token_id = {}});
  }
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : model->parameters())
    if (p.dim() == 2) p.mul_(8);  // so that tokens depend on the tokens before
  return model;
}

at::Tensor one_text(const std::vector<int64_t>& tokens) { return at::tensor(tokens).unsqueeze(0); }

at::Tensor some_tokens(int64_t batch, int64_t length) {
  return at::randint(kVocabulary, {batch, length}, at::kLong);
}

/// The likeliest next tokens by full passes.
at::Tensor greedy_without_cache(CausalModel& model, at::Tensor tokens, int64_t count) {
  const at::NoGradGuard no_grad;
  const int64_t before = tokens.size(1);
  for (int64_t i = 0; i < count; ++i)
    tokens = at::cat({tokens, model.forward(tokens).select(1, -1).argmax(-1, /*keepdim=*/true)}, 1);
  return tokens.slice(1, before);
}

constexpr SamplingOptions kGreedy{.temperature = 0};

class EveryCausalModel : public testing::TestWithParam<std::string> {};

// One position at a time, and several, sum in another order than all at once, which float64 tells from an error.
TEST_P(EveryCausalModel, TheCacheGivesTheLogitsOfAFullPass) {
  const DefaultDtypeGuard guard(at::kDouble);
  const auto model = make(GetParam());
  const at::Tensor tokens = some_tokens(2, kContext);
  const at::NoGradGuard no_grad;
  const at::Tensor whole = model->forward(tokens);
  const double scale = whole.abs().max().item<double>();
  KeyValueCache cache(kContext);
  for (const int64_t positions : {7, 1, 1, 3, 11, 1}) {
    const at::Tensor logits = model->next_logits(tokens.narrow(1, cache.length(), positions), cache);
    const at::Tensor error = (logits - whole.select(1, cache.length() - 1)).abs().max();
    EXPECT_LE(error.item<double>(), 1e-13 * scale) << "after " << cache.length();
  }
  EXPECT_THAT(error_of<c10::ValueError>([&] { model->next_logits(tokens.narrow(1, 0, 1), cache); }),
              HasSubstr("a sequence of 25 tokens is longer than the context of 24"));
}

TEST_P(EveryCausalModel, GreedyTokensEqualThoseOfFullPasses) {
  const auto model = make(GetParam());
  const at::Tensor prompt = some_tokens(3, 5);
  const Generated made = generate(*model, prompt, {.max_new_tokens = 15, .sampling = kGreedy});
  EXPECT_TRUE(at::equal(made.tokens, greedy_without_cache(*model, prompt, 15))) << made.tokens;
  EXPECT_EQ(made.end, GenerateEnd::kMaxNewTokens);
  EXPECT_GT(made.tokens_per_second(), 0);
}

TEST_P(EveryCausalModel, TheTextEndsWhereTheContextIsFull) {
  const auto model = make(GetParam());
  const at::Tensor prompt = some_tokens(1, kContext - 2);
  const Generated made = generate(*model, prompt, {.sampling = kGreedy});
  EXPECT_TRUE(at::equal(made.tokens, greedy_without_cache(*model, prompt, 3)));
  EXPECT_EQ(made.end, GenerateEnd::kContext);
  EXPECT_EQ(generate(*model, prompt, {.max_new_tokens = 3}).end, GenerateEnd::kMaxNewTokens);
  const Generated one = generate(*model, some_tokens(1, kContext), {});
  EXPECT_EQ(one.tokens.size(1), 1);
  EXPECT_EQ(one.tokens_per_second(), 0);
}

TEST_P(EveryCausalModel, ASlidingContextReadsItsNewerHalfAgain) {
  const auto model = make(GetParam());
  const at::Tensor prompt = some_tokens(2, kContext - 2);
  const Generated made = generate(*model, prompt, {.max_new_tokens = 30, .sampling = kGreedy, .slide = true});
  EXPECT_EQ(made.end, GenerateEnd::kMaxNewTokens);
  at::Tensor all = at::cat({prompt, greedy_without_cache(*model, prompt, 3)}, 1);  // 25 tokens
  while (all.size(1) < kContext - 2 + 30) {
    const int64_t room = std::min<int64_t>(kContext / 2 + 1, kContext - 2 + 30 - all.size(1));
    all = at::cat({all, greedy_without_cache(*model, all.slice(1, all.size(1) - kContext / 2), room)}, 1);
  }
  EXPECT_TRUE(at::equal(made.tokens, all.slice(1, kContext - 2)));
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryCausalModel, testing::Values("Gpt", "Llama", "LlamaInGroups"));

TEST(Generate, GreedyTokensAreTheLikeliestOnes) {
  Gpt model(GptOptions{.layers = 1, .width = 8, .heads = 1, .context = 16, .vocabulary = 5});
  {
    const at::NoGradGuard no_grad;
    auto weights = model->named_parameters();
    weights["norm.weight"].zero_();  // the logits are then those of norm.bias
    weights["norm.bias"].fill_(1);
    weights["head.weight"].zero_()[3].fill_(1);
  }
  const Generated made = generate(*model, one_text({0, 1}), {.max_new_tokens = 4, .sampling = kGreedy});
  EXPECT_TRUE(at::equal(made.tokens, at::full({1, 4}, 3, at::kLong)));
}

TEST(Generate, ASeedGivesTheSameTextAndLeavesTheGlobalGeneratorAlone) {
  const auto model = make("Llama");
  const at::Tensor prompt = some_tokens(2, 3);
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto text = [&](std::optional<uint64_t> seed) {
    return generate(*model, prompt, {.max_new_tokens = 12, .sampling = {.temperature = 3}, .seed = seed})
        .tokens;
  };
  EXPECT_TRUE(at::equal(text(5), text(5)));
  EXPECT_FALSE(at::equal(text(5), text(6)));
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), state));
  torch::manual_seed(5);
  const at::Tensor drawn = text(std::nullopt);
  EXPECT_TRUE(at::equal(drawn, text(5))) << "the global generator in the same state draws the same";
  EXPECT_FALSE(at::equal(drawn, text(std::nullopt)));
}

TEST(Generate, ASequenceEndsWithAStopToken) {
  const auto model = make("Llama");
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : model->parameters())
      if (p.dim() == 1) p.mul_(8);  // so that a text does not repeat one token
  }
  const at::Tensor prompt = some_tokens(2, 4);
  const auto text = [&](const std::vector<int64_t>& stops) {
    return generate(*model, prompt, {.max_new_tokens = 12, .sampling = kGreedy, .stop_tokens = stops});
  };
  const at::Tensor free = text({}).tokens;
  const auto first = free[0][2].item<int64_t>(), second = free[1][5].item<int64_t>();
  ASSERT_FALSE(free[0].slice(0, 0, 2).eq(first).any().item<bool>() || free[1].eq(first).any().item<bool>() ||
               free[1].slice(0, 0, 5).eq(second).any().item<bool>() ||
               free[0].slice(0, 0, 3).eq(second).any().item<bool>())
      << free;
  const Generated made = text({first, second});
  EXPECT_EQ(made.end, GenerateEnd::kStopToken);
  ASSERT_EQ(made.tokens.size(1), 6);
  EXPECT_TRUE(at::equal(made.tokens[1], free[1].slice(0, 0, 6)));
  EXPECT_TRUE(at::equal(made.tokens[0].slice(0, 0, 3), free[0].slice(0, 0, 3)));
  EXPECT_TRUE(made.tokens[0].slice(0, 3).eq(first).all().item<bool>()) << "filled with the first stop token";
  EXPECT_EQ(text({first}).end, GenerateEnd::kMaxNewTokens) << "the other sequence goes on";
}

TEST(Generate, StopTokensAreTheModelsByDefault) {
  LlamaOptions options{.vocab_size = 3,
                       .hidden_size = 4,
                       .intermediate_size = 4,
                       .num_hidden_layers = 1,
                       .num_attention_heads = 1,
                       .max_position_embeddings = 8,
                       .eos_token_id = {0, 1, 2}};
  const Generated made = generate(*Llama(options), one_text({0}), {.max_new_tokens = 5});
  EXPECT_EQ(made.tokens.size(1), 1);
  EXPECT_EQ(made.end, GenerateEnd::kStopToken);
}

TEST(Generate, TokensAreStreamedAndTheCallerMayEndTheText) {
  const auto model = make("Gpt");
  std::vector<at::Tensor> seen;
  GenerateOptions options{.max_new_tokens = 9, .sampling = kGreedy};
  options.on_token = [&](const at::Tensor& tokens) {
    seen.push_back(tokens);
    return seen.size() < 4;
  };
  const Generated made = generate(*model, some_tokens(2, 3), options);
  EXPECT_EQ(made.end, GenerateEnd::kCaller);
  EXPECT_TRUE(at::equal(made.tokens, at::stack(seen, 1)));
  EXPECT_EQ(seen.size(), 4U);
}

TEST(Generate, LeavesTheModelAsItWas) {
  const auto model = make("Llama");
  ASSERT_TRUE(model->is_training());
  const Generated made = generate(*model, some_tokens(1, 3).to(at::kInt), {.max_new_tokens = 2});
  EXPECT_TRUE(model->is_training());
  EXPECT_EQ(made.tokens.scalar_type(), at::kLong);
  model->forward(some_tokens(1, 4)).sum().backward();
  for (const at::Tensor& p : model->parameters()) EXPECT_TRUE(p.grad().defined());
}

TEST(Generate, RefusesWhatIsNotAPrompt) {
  const auto model = make("Gpt");
  const auto refusal = [&](const at::Tensor& prompt) {
    return error_of<c10::ValueError>([&] { generate(*model, prompt); });
  };
  EXPECT_THAT(refusal(some_tokens(1, 0)), HasSubstr("the prompt is empty"));
  EXPECT_THAT(refusal(some_tokens(1, kContext + 1)),
              HasSubstr("the prompt of 25 tokens is longer than the model's context of 24"));
  EXPECT_THAT(refusal(one_text({1, 31})), HasSubstr("has the token 31, and the vocabulary is 0 to 30"));
  EXPECT_THAT(refusal(one_text({-1, 3})), HasSubstr("has the token -1"));
  EXPECT_THAT(refusal(one_text({1, 2})[0]), HasSubstr("unsqueeze(0)"));
  EXPECT_EQ(refusal(one_text({0, 30})), "no error");
  EXPECT_THAT(error_of<c10::TypeError>([&] { generate(*model, at::zeros({1, 2})); }), HasSubstr("int64"));
}

TEST(Generate, RefusesOptionsOutOfRange) {
  const auto model = make("Gpt");
  const auto refusal = [&](const GenerateOptions& options) {
    return error_of<c10::ValueError>([&] { generate(*model, some_tokens(1, 2), options); });
  };
  EXPECT_THAT(refusal({.max_new_tokens = 0}), HasSubstr("max_new_tokens is 0"));
  EXPECT_THAT(refusal({.sampling = {.top_p = 2}}), HasSubstr("top_p is 2"));
  EXPECT_THAT(refusal({.stop_tokens = {{31}}}), HasSubstr("the stop token 31 is outside of the vocabulary"));
  EXPECT_THAT(refusal({.stop_tokens = {{-1}}}), HasSubstr("the stop token -1"));
  EXPECT_EQ(refusal({.max_new_tokens = 1, .stop_tokens = {{30}}}), "no error");
  EXPECT_EQ(refusal({.max_new_tokens = std::numeric_limits<int64_t>::max()}), "no error");
}

}  // namespace
}  // namespace mantissa::generate_test
