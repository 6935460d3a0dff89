// Tests of `mantissa generate`.
#include "mantissa/models/generate.h"

#include <filesystem>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"
#include "mantissa/models/llama_files.h"

namespace mantissa::cli::generate_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GenerateCommand : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    at::manual_seed(1);
    Llama model(kOptions);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& p : model->parameters())
        if (p.dim() == 2) p.mul_(8);  // so that tokens depend on the tokens before
    }
    save_llama(*model, folder_ / "llama");
  }
  Outcome generate(const std::string& arguments) const { return run("generate --device cpu " + arguments); }
  std::vector<int64_t> expected(const std::vector<int64_t>& prompt, const GenerateOptions& options) const {
    const at::Tensor tokens =
        mantissa::generate(*load_llama(folder_ / "llama"), at::tensor(prompt).unsqueeze(0), options).tokens;
    return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()};
  }

  const LlamaOptions kOptions{.vocab_size = 300,
                              .hidden_size = 32,
                              .intermediate_size = 64,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 4,
                              .num_key_value_heads = 2,
                              .max_position_embeddings = 128,
                              .eos_token_id = {299}};
};

TEST_F(GenerateCommand, APublicModelContinuesTokens) {
  const std::string prompt = "llama --prompt-tokens 17,4,250 --max-new-tokens 6 ";
  const Outcome made = generate(prompt + "--temperature 0 --json made.json");
  ASSERT_EQ(made.status, 0) << made.err;
  const auto tokens = expected({17, 4, 250}, {.max_new_tokens = 6, .sampling = {.temperature = 0}});
  std::string list;
  for (const int64_t token : tokens) list.append(list.empty() ? "" : ",").append(std::to_string(token));
  EXPECT_EQ(made.out, list + "\n");
  EXPECT_THAT(made.err, testing::AllOf(HasSubstr("3 prompt tokens in "), HasSubstr("then 5 tokens"),
                                       HasSubstr("a second; ended by max_new_tokens\n")));
  const json result = json::parse(read(folder_ / "made.json"));
  EXPECT_EQ(result["tokens"], tokens);
  EXPECT_EQ(result["prompt_tokens"], (std::vector<int64_t>{17, 4, 250}));
  EXPECT_EQ(result["precision"], "32-true") << "that of the weights";
  EXPECT_GT(result["tokens_per_second"], 0);

  const Outcome drawn = generate(prompt + "--temperature 2 --top-k 50 --top-p 0.9 --seed 3 --quiet --json -");
  ASSERT_EQ(drawn.status, 0) << drawn.err;
  EXPECT_EQ(drawn.err, "");
  EXPECT_EQ(
      json::parse(drawn.out)["tokens"],
      expected({17, 4, 250},
               {.max_new_tokens = 6, .sampling = {.temperature = 2, .top_k = 50, .top_p = 0.9}, .seed = 3}));
}

TEST_F(GenerateCommand, TheTimesBeginALineOfTheirOwn) {
  const Outcome made = generate("llama --prompt-tokens 17,4 --max-new-tokens 3 --temperature 0 2>&1");
  ASSERT_EQ(made.status, 0) << made.out;
  EXPECT_THAT(made.out, testing::ContainsRegex("^[0-9]+,[0-9]+,[0-9]+\n2 prompt tokens in "));
}

TEST_F(GenerateCommand, TheTextEndsWithAStopTokenOrTheContext) {
  const auto tokens = expected({8}, {.max_new_tokens = 5, .sampling = {.temperature = 0}});
  const std::string greedy = "llama --prompt-tokens 8 --temperature 0 --quiet --json - ";
  const json stopped = json::parse(generate(greedy + "--stop-tokens 1," + std::to_string(tokens[2])).out);
  EXPECT_EQ(stopped["ended_by"], "stop_token");
  EXPECT_LE(stopped["tokens"].size(), 3U);
  const json full = json::parse(generate(greedy + "--stop-tokens none --max-new-tokens 200").out);
  EXPECT_EQ(full["ended_by"], "context");
  EXPECT_EQ(full["tokens"].size(), 128U);
  const json more = json::parse(generate(greedy + "--stop-tokens none --max-new-tokens 200 --slide").out);
  EXPECT_EQ(more["tokens"].size(), 200U);
  const json most =
      json::parse(generate(greedy + "--stop-tokens none --max-new-tokens 9223372036854775807").out);
  EXPECT_EQ(most["tokens"], full["tokens"]);
}

TEST_F(GenerateCommand, QuantizedWeightsAndOtherPrecisions) {
  ASSERT_EQ(run("convert llama nf4 --to nf4").status, 0);
  write("nf4/config.json", read(folder_ / "llama" / "config.json"));
  const std::string prompt = " --prompt-tokens 17,4 --max-new-tokens 3 --quiet --json - ";
  EXPECT_EQ(json::parse(generate("nf4" + prompt).out)["precision"], "nf4") << "that of the weights";
  for (const char* precision : {"nf4-dq", "bf16-true", "bf16-mixed", "16-true"}) {
    const Outcome made = generate("llama" + prompt + "--precision " + precision);
    ASSERT_EQ(made.status, 0) << made.err;
    EXPECT_EQ(json::parse(made.out)["precision"], precision);
    EXPECT_EQ(json::parse(made.out)["tokens"].size(), 3U);
  }
}

TEST_F(GenerateCommand, ARunContinuesText) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abcdefgh ";
  write("text.txt", text);
  const Outcome trained =
      fit("--model llama-tiny --data text:text.txt --precision bf16-mixed --max-steps 40 --batch-size 4 "
          "--warmup-steps 4 --limit-val-batches 1 --output run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  std::filesystem::remove(folder_ / "text.txt");  // the data is not needed
  const Outcome made =
      generate("run --prompt 'abcdefgh abcdefgh abc' --temperature 0 --max-new-tokens 15 --quiet");
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.out, "defgh abcdefgh \n");
}

TEST_F(GenerateCommand, ErrorsNameTheFlagAndTheCure) {
  const std::string tokens = "llama --prompt-tokens 1,2 ";
  expect_error(generate("llama"), 2, {"give either --prompt TEXT or --prompt-tokens LIST"});
  expect_error(generate(tokens + "--prompt a"), 2, {"give either --prompt TEXT or --prompt-tokens LIST"});
  expect_error(generate("llama --prompt hello"), 2, {"'llama' is no run", "--prompt-tokens"});
  expect_error(generate("llama --prompt ''"), 2, {"--prompt is empty"});
  expect_error(generate("llama --prompt-tokens ''"), 1, {"the prompt is empty"});
  expect_error(generate("llama --prompt-tokens 1,x"), 2, {"--prompt-tokens: 'x'"});
  expect_error(generate("llama --prompt-tokens 1,"), 2, {"ends with a comma"});
  expect_error(generate("llama --prompt-tokens 300"), 1,
               {"has the token 300, and the vocabulary is 0 to 299"});
  expect_error(generate(tokens + "--temperature -1"), 2, {"temperature is -1"});
  expect_error(generate(tokens + "--temperature warm"), 2, {"--temperature", "'warm'"});
  expect_error(generate(tokens + "--top-p 1.5"), 2, {"top_p is 1.5"});
  expect_error(generate(tokens + "--top-k -1"), 2, {"top_k is -1"});
  expect_error(generate(tokens + "--max-new-tokens 0"), 2, {"--max-new-tokens 0"});
  expect_error(generate(tokens + "--stop-tokens 300"), 1, {"the stop token 300"});
  expect_error(generate("absent --prompt-tokens 1"), 2, {"'absent' does not exist"});
  std::string long_prompt = "1";
  for (int i = 0; i < 128; ++i) long_prompt += ",1";
  expect_error(generate("llama --prompt-tokens " + long_prompt), 1,
               {"prompt of 129 tokens", "context of 128"});
}

}  // namespace
}  // namespace mantissa::cli::generate_test
