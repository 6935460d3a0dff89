#include "mantissa/models/gpt2.h"

#include <cmath>
#include <functional>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/models/generate.h"

namespace mantissa::gpt2_test {
namespace {

using testing::HasSubstr;

Gpt2Options small() { return {.vocab_size = 10, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 4}; }

at::Tensor some_tokens(int64_t batch, int64_t length) { return at::randint(10, {batch, length}, at::kLong); }

std::string error_with(const std::function<void(Gpt2Options&)>& change) {
  Gpt2Options options = small();
  change(options);
  return error_of<c10::ValueError>([&] { Gpt2{options}; });
}

TEST(Gpt2, NamesOfParameters) {
  const auto keys = Gpt2(small())->named_parameters().keys();
  EXPECT_EQ(keys.size(), 2 * 12 + 4U);
  for (const char* name :
       {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight",
        "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.bias", "transformer.h.1.ln_2.bias",
        "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight", "transformer.ln_f.weight"})
    EXPECT_THAT(keys, testing::Contains(name));
  Gpt2Options untied = small();
  untied.tie_word_embeddings = false;
  EXPECT_THAT(Gpt2(untied)->named_parameters().keys(), testing::Contains("lm_head.weight"));
}

TEST(Gpt2, NamesOfFiles) {
  const Gpt2 model(small());
  EXPECT_EQ(model->own_name("transformer.h.0.ln_1.bias"), "transformer.h.0.ln_1.bias");
  EXPECT_EQ(model->own_name("h.0.attn.c_attn.bias"), "transformer.h.0.attn.c_attn.bias");
  EXPECT_EQ(model->own_name("h.0.attn.bias"), "") << "a mask";
  EXPECT_EQ(model->own_name("transformer.h.11.attn.masked_bias"), "");
  EXPECT_EQ(model->own_name("lm_head.weight"), "") << "the table of embeddings once more";
  Gpt2Options untied = small();
  untied.tie_word_embeddings = false;
  EXPECT_EQ(Gpt2(untied)->own_name("lm_head.weight"), "lm_head.weight");
}

TEST(Gpt2, PublicSizesHaveTheirNumbersOfParameters) {
  for (const auto& [name, millions] :
       {std::pair("gpt2", 124), {"gpt2-medium", 355}, {"gpt2-large", 774}, {"gpt2-xl", 1558}}) {
    const Gpt2Options o = gpt2_options(name);
    const int64_t block = 12 * o.n_embd * o.n_embd + 13 * o.n_embd;
    const int64_t all = (o.vocab_size + o.n_positions + 2) * o.n_embd + o.n_layer * block;
    EXPECT_EQ(std::llround(static_cast<double>(all) / 1e6), millions) << name;
    EXPECT_EQ(o.n_embd / o.n_head, 64) << name;
  }
  int64_t count = 0;
  for (const at::Tensor& p : Gpt2(small())->parameters()) count += p.numel();
  EXPECT_EQ(count, (10 + 8 + 2) * 16 + 2 * (12 * 16 * 16 + 13 * 16)) << "the formula above";
  EXPECT_THAT(error_of<c10::ValueError>([] { gpt2_options("gpt2-x"); }), HasSubstr("did you mean 'gpt2-xl'"));
}

TEST(Gpt2, DropoutActsInTrainingOnly) {
  torch::manual_seed(3);
  Gpt2 model(small());
  const at::Tensor tokens = some_tokens(2, 8);
  EXPECT_FALSE(at::equal(model(tokens), model(tokens)));
  model->eval();
  EXPECT_TRUE(at::equal(model(tokens), model(tokens)));
  for (double Gpt2Options::*only :
       {&Gpt2Options::resid_pdrop, &Gpt2Options::embd_pdrop, &Gpt2Options::attn_pdrop}) {
    Gpt2Options options = small();
    options.resid_pdrop = options.embd_pdrop = options.attn_pdrop = 0;
    Gpt2 none(options);
    EXPECT_TRUE(at::equal(none(tokens), none(tokens)));
    options.*only = 0.5;
    Gpt2 one(options);
    EXPECT_FALSE(at::equal(one(tokens), one(tokens)));
  }
}

TEST(Gpt2, APositionSeesThePastAndNotTheFuture) {
  torch::manual_seed(4);
  Gpt2 model(small());
  model->eval();
  at::Tensor tokens = some_tokens(1, 8);
  const at::Tensor before = model(tokens);
  tokens[0][5] = (tokens[0][5] + 1) % 10;
  const at::Tensor after = model(tokens);
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 5), after.narrow(1, 0, 5), 1e-5, 1e-7));
  EXPECT_FALSE(at::allclose(before.narrow(1, 5, 1), after.narrow(1, 5, 1), 1e-5, 1e-7));
  EXPECT_FALSE(at::allclose(before.narrow(1, 7, 1), after.narrow(1, 7, 1), 1e-5, 1e-7));
}

TEST(Gpt2, StartsFromItsDistribution) {
  torch::manual_seed(3);
  Gpt2Options options = small();
  options.n_embd = 128, options.initializer_range = 0.05;
  for (const auto& item : Gpt2(options)->named_parameters()) {
    const at::Tensor& p = item.value();
    if (p.dim() == 2) {
      const double std = item.key().ends_with("c_proj.weight") ? 0.05 / 2 : 0.05;  // sqrt(2 * 2 layers)
      EXPECT_NEAR(p.std().item<double>() / std, 1, 0.1) << item.key();
    } else {
      EXPECT_TRUE((p == (item.key().ends_with("bias") ? 0 : 1)).all().item<bool>()) << item.key();
    }
  }
}

TEST(Gpt2, TheCacheGivesTheTextOfFullPassesWithoutDropout) {
  torch::manual_seed(5);
  Gpt2Options options = small();
  options.initializer_range = 0.3, options.eos_token_id = {};
  Gpt2 model(options);  // in training mode
  const at::Tensor prompt = some_tokens(2, 3);
  const Generated made = generate(*model, prompt, {.sampling = {.temperature = 0}});
  model->eval();
  at::Tensor tokens = prompt;
  for (int i = 0; i < 6; ++i)
    tokens = at::cat({tokens, model(tokens).select(1, -1).argmax(-1, /*keepdim=*/true)}, 1);
  EXPECT_TRUE(at::equal(made.tokens, tokens.slice(1, 3)));
  EXPECT_EQ(made.end, GenerateEnd::kContext);
}

TEST(Gpt2, RefusesWhatIsNotItsTokens) {
  Gpt2 model(small());
  EXPECT_THAT(error_of<c10::ValueError>([&] { model(some_tokens(2, 9)); }),
              HasSubstr("Gpt2: a sequence of 9 tokens is longer than the context of 8"));
  EXPECT_THAT(error_of<c10::IndexError>([&] { model(some_tokens(2, 4).fill_(10)); }),
              HasSubstr("to 10, and the vocabulary is 0 to 9"));
  EXPECT_THROW(model(at::zeros({2, 4})), c10::TypeError);
}

TEST(Gpt2, RefusesOptionsOutOfRangeByName) {
  EXPECT_THAT(error_with([](auto& o) { o.vocab_size = 0; }), HasSubstr("Gpt2: vocab_size is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.n_inner = -1; }), HasSubstr("n_inner is -1"));
  EXPECT_THAT(error_with([](auto& o) { o.n_head = 3; }),
              HasSubstr("n_embd 16 is not a multiple of n_head 3"));
  EXPECT_THAT(error_with([](auto& o) { o.layer_norm_epsilon = 0; }), HasSubstr("layer_norm_epsilon is 0"));
  EXPECT_THAT(error_with([](auto& o) { o.initializer_range = INFINITY; }),
              HasSubstr("initializer_range is inf"));
  EXPECT_THAT(error_with([](auto& o) { o.attn_pdrop = 1; }), HasSubstr("attn_pdrop is 1"));
  EXPECT_THAT(error_with([](auto& o) { o.resid_pdrop = -0.1; }), HasSubstr("resid_pdrop is -0.1"));
  EXPECT_THAT(error_with([](auto& o) { o.embd_pdrop = NAN; }), HasSubstr("embd_pdrop is nan"));
  EXPECT_THAT(error_with([](auto& o) { o.activation_function = "relu"; }), HasSubstr("'relu'"));
  EXPECT_EQ(error_with([](auto& o) { o.n_inner = 5, o.embd_pdrop = 0, o.activation_function = "gelu"; }),
            "no error");
}

}  // namespace
}  // namespace mantissa::gpt2_test
