// Text from models in the modes: the key/value cache has the mode's dtype, and its logits are those of full passes.
#include "mantissa/models/generate.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/models/gpt.h"
#include "mantissa/models/llama.h"
#include "mantissa/precision/registry.h"

namespace mantissa::generate_modes_test {
namespace {

std::shared_ptr<CausalModel> make_llama() {
  return std::make_shared<LlamaImpl>(LlamaOptions{.vocab_size = 50,
                                                  .hidden_size = 64,
                                                  .intermediate_size = 96,
                                                  .num_hidden_layers = 2,
                                                  .num_attention_heads = 4,
                                                  .num_key_value_heads = 2,
                                                  .max_position_embeddings = 32,
                                                  .eos_token_id = {}});
}

std::shared_ptr<CausalModel> make_gpt() {
  return std::make_shared<GptImpl>(
      GptOptions{.layers = 2, .width = 64, .heads = 4, .context = 32, .vocabulary = 50});
}

class GenerateInMode : public testing::TestWithParam<std::string> {};

TEST_P(GenerateInMode, TheCacheGivesTheLogitsOfAFullPass) {
  // Products and attention of one position sum in another order. In 16 bits that changes last places, which grow over two
  // layers.
  const std::map<std::string, double> tolerances{{"64-true", 1e-14}, {"32-true", 2e-6}, {"tf32-mixed", 2e-6}};
  const auto found = tolerances.find(GetParam());
  const double tolerance = found == tolerances.end() ? 0.03 : found->second;
  for (const auto& make : {make_llama, make_gpt}) {
    torch::manual_seed(3);
    const auto model = make();
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& p : model->parameters())
        if (p.dim() == 2) p.mul_(4);  // so that tokens depend on the tokens before
    }
    const auto mode = make_precision(GetParam(), at::kCPU);
    mode->convert_module(*model);
    const Scope run = mode->run_context(), scope = mode->forward_context();
    const torch::NoGradGuard no_grad;
    const at::Tensor tokens = torch::randint(50, {2, 32}, torch::kLong);
    const at::Tensor whole = model->forward(tokens).to(at::kDouble);
    KeyValueCache cache(32);
    for (const int64_t positions : {9, 1, 1, 4, 1}) {
      const at::Tensor logits = model->next_logits(tokens.narrow(1, cache.length(), positions), cache);
      const at::Tensor error = (logits.to(at::kDouble) - whole.select(1, cache.length() - 1)).abs().max();
      EXPECT_LE(error.item<double>(), tolerance * whole.abs().max().item<double>()) << cache.length();
    }
    const Generated made = generate(*model, tokens.slice(1, 0, 4), {.max_new_tokens = 8, .seed = 1});
    EXPECT_EQ(made.tokens.sizes(), (at::IntArrayRef{2, 8}));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, GenerateInMode,
                         testing::Values("32-true", "64-true", "tf32-mixed", "bf16-mixed", "16-mixed",
                                         "bf16-true", "16-true", "nf4", "nf4-dq", "fp4", "int8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace mantissa::generate_modes_test
