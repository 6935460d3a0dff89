#include "mantissa/models/gpt.h"

#include <cmath>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::gpt_test {
namespace {

constexpr GptOptions kSmall{.layers = 2, .width = 16, .heads = 2, .context = 8, .vocabulary = 10};

at::Tensor some_tokens(int64_t batch, int64_t length) { return at::randint(10, {batch, length}, at::kLong); }

TEST(Gpt, RefusesASequenceLongerThanItsContextWithTheCure) {
  Gpt model(kSmall);
  EXPECT_EQ(model(some_tokens(2, 8)).sizes(), (at::IntArrayRef{2, 8, 10}));
  const std::string error = error_of<c10::ValueError>([&] { model(some_tokens(2, 9)); });
  EXPECT_THAT(error, testing::HasSubstr("9 tokens is longer than the context of 8"));
}

TEST(Gpt, RefusesATokenOutsideTheVocabularyWithItsValue) {
  Gpt model(kSmall);
  at::Tensor tokens = some_tokens(2, 8);
  tokens[1][3] = 10;
  EXPECT_THAT(error_of<c10::IndexError>([&] { model(tokens); }),
              testing::AllOf(testing::HasSubstr("to 10, and the vocabulary is 0 to 9"),
                             testing::HasSubstr("larger vocab")));
  tokens[1][3] = -1;
  EXPECT_THAT(error_of<c10::IndexError>([&] { model(tokens); }), testing::HasSubstr("tokens run from -1"));
}

TEST(Gpt, RefusesWhatIsNotTokens) {
  Gpt model(kSmall);
  EXPECT_THROW(model(at::zeros({2, 4})), c10::TypeError);
  EXPECT_THROW(model(some_tokens(2, 4).view({8})), c10::ValueError);
  EXPECT_THROW(model(some_tokens(2, 0)), c10::ValueError);
}

TEST(Gpt, RefusesImpossibleSizes) {
  EXPECT_THAT(error_of<c10::ValueError>([] { Gpt(GptOptions{.width = 10, .heads = 3}); }),
              testing::HasSubstr("width 10 is not a multiple of heads 3"));
  EXPECT_THROW(Gpt(GptOptions{.layers = 0}), c10::ValueError);
  EXPECT_THROW(Gpt(GptOptions{.heads = 0}), c10::ValueError);
  EXPECT_THROW(Gpt(GptOptions{.vocabulary = -1}), c10::ValueError);
}

TEST(Gpt, CountOfParametersAtTheDefaultSize) {
  Gpt model(GptOptions{});
  int64_t count = 0;
  for (const at::Tensor& p : model->parameters()) count += p.numel();
  const int64_t block =
      2 * (2 * 256) + (256 * 768 + 768) + (256 * 256 + 256) + (256 * 1024 + 1024) + (1024 * 256 + 256);
  EXPECT_EQ(count, 256 * 256 + 128 * 256 + 4 * block + 2 * 256 + 256 * 256);
}

TEST(Gpt, NamesOfParameters) {
  const auto keys = Gpt(kSmall)->named_parameters().keys();
  EXPECT_THAT(
      std::vector<std::string>(keys.begin(), keys.begin() + 6),
      testing::ElementsAre("token_embedding.weight", "position_embedding.weight", "blocks.0.norm1.weight",
                           "blocks.0.norm1.bias", "blocks.0.qkv.weight", "blocks.0.qkv.bias"));
  EXPECT_EQ(keys.back(), "head.weight");
}

TEST(Gpt, StartsFromGpt2sDistribution) {
  torch::manual_seed(3);
  Gpt model(GptOptions{});
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& p = item.value();
    if (p.dim() == 2) {
      const bool residual = item.key().find("projection") != std::string::npos ||
                            item.key().find("contract") != std::string::npos;
      const double std = residual ? 0.02 / std::sqrt(8.0) : 0.02;
      EXPECT_NEAR(p.std().item<double>() / std, 1, 0.02) << item.key();
    } else {
      const bool is_norm_weight = item.key().find("weight") != std::string::npos;
      EXPECT_TRUE((p == (is_norm_weight ? 1 : 0)).all().item<bool>()) << item.key();
    }
  }
  const at::Tensor tokens = at::randint(256, {4, 128}, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(model(tokens).view({-1, 256}), tokens.view(-1));
  EXPECT_NEAR(loss.item<double>(), std::log(256.0), 0.2) << "an untrained model knows nothing";
}

TEST(Gpt, APositionDoesNotSeeTheFuture) {
  torch::manual_seed(4);
  Gpt model(kSmall);
  at::Tensor tokens = some_tokens(1, 8);
  const at::Tensor before = model(tokens);
  tokens[0][5] = (tokens[0][5] + 1) % 10;
  const at::Tensor after = model(tokens);
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 5), after.narrow(1, 0, 5), 1e-5, 1e-7));
  EXPECT_FALSE(at::allclose(before.narrow(1, 5, 1), after.narrow(1, 5, 1), 1e-5, 1e-7));
  EXPECT_FALSE(at::allclose(before.narrow(1, 7, 1), after.narrow(1, 7, 1), 1e-5, 1e-7))
      << "a later position sees it";
}

TEST(Gpt, AcceptsInt32TokensWithTheSameResult) {
  Gpt model(kSmall);
  const at::Tensor tokens = some_tokens(2, 5);
  EXPECT_TRUE(at::equal(model(tokens), model(tokens.to(at::kInt))));
}

}  // namespace
}  // namespace mantissa::gpt_test
