// Tests of --model hf:FOLDER.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"
#include "mantissa/models/llama_config.h"
#include "mantissa/models/llama_files.h"

namespace mantissa::cli::llama_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class HuggingFace : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    save_llama(*Llama(kOptions), folder_ / "llama");
    std::string text;
    for (int i = 0; i < 600; ++i) text += "line " + std::to_string(i * 7919) + "\n";
    write("text.txt", text);
  }
  Outcome fit_llama(const std::string& arguments) const {
    return fit("--model hf:llama --data text:text.txt --max-steps 2 --batch-size 2 --limit-val-batches 1 " +
               arguments);
  }
  json inspected(const std::string& file) const {
    return json::parse(run("inspect --json --no-values " + file).out)[0];
  }

  const LlamaOptions kOptions{.vocab_size = 300,
                              .hidden_size = 32,
                              .intermediate_size = 64,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 4,
                              .num_key_value_heads = 2,
                              .max_position_embeddings = 128,
                              .bos_token_id = 7};
};

TEST_F(HuggingFace, ARunWhoseModelHasMovedSaysWhereItWas) {
  ASSERT_EQ(fit_llama("--output tuned").status, 0);
  std::filesystem::rename(folder_ / "llama", folder_ / "elsewhere");
  for (const char* const command :
       {"resume tuned --max-steps 3", "validate tuned", "generate tuned --prompt a"})
    expect_error(run(command), 1,
                 {"hf:llama in 'tuned/config.yaml'", "'llama' is not there", "under `model`"});
  std::filesystem::rename(folder_ / "elsewhere", folder_ / "llama");
  EXPECT_EQ(run("resume tuned --max-steps 3 --quiet").status, 0);
}

TEST_F(HuggingFace, ALlamaIsFineTunedAndConvertedToAFolderForTransformers) {
  const Outcome trained = fit_llama("--weights llama --precision bf16-true --lr 0.1 --optimizer sgd");
  ASSERT_EQ(trained.status, 0) << trained.err;
  const std::string run_folder = "runs/text-llama-bf16-true-1";
  EXPECT_EQ(load_llama_config(folder_ / run_folder), load_llama_config(folder_ / "llama"));
  EXPECT_EQ(json::parse(read(folder_ / run_folder / "config.json"))["torch_dtype"], "bfloat16");
  EXPECT_EQ(run("validate " + run_folder + " --device cpu --quiet").status, 0);

  const Outcome converted = run("convert " + run_folder + "/weights.safetensors tuned --dtype fp32");
  ASSERT_EQ(converted.status, 0) << converted.err;
  EXPECT_EQ(inspected("tuned")["metadata"]["format"], "pt");
  EXPECT_EQ(json::parse(read(folder_ / "tuned" / "config.json"))["torch_dtype"], "float32")
      << "that of the new weights";
  const Llama before = load_llama(folder_ / "llama"), after = load_llama(folder_ / "tuned");
  EXPECT_EQ(after->options(), before->options());
  const auto moved = [&](const char* name) {
    return (after->named_parameters()[name] - before->named_parameters()[name]).abs().max().item<double>();
  };
  EXPECT_GT(moved("lm_head.weight"), 0);
  EXPECT_LT(moved("lm_head.weight"), 0.1) << "it began with the weights of the file";
  expect_error(run("convert llama tuned --overwrite --max-shard-size 1KB"), 1, {"tuned/model.safetensors"});
}

TEST_F(HuggingFace, AConfigHasTheDtypeOfMostValuesThoughOthersTakeMoreBytes) {
  // The layers have 49 % of the values, and in float32 66 % of the bytes.
  ASSERT_EQ(run("convert llama mixed --dtype bf16 --keep-fp32 'model.layers.*'").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "mixed" / "config.json"))["torch_dtype"], "bfloat16");
}

TEST_F(HuggingFace, AConfigHasADtypeThatItCanName) {
  // transformers has no name for FP8, which 51 % of the values have, and the config that is copied says bfloat16.
  ASSERT_EQ(run("convert llama half --dtype bf16").status, 0);
  ASSERT_EQ(run("convert half mixed --dtype fp8-e4m3 --keep-fp32 'model.layers.*'").status, 0);
  EXPECT_EQ(json::parse(read(folder_ / "mixed" / "config.json"))["torch_dtype"], "float32");
}

TEST_F(HuggingFace, ConvertReplacesAConfigOnlyWhenAsked) {
  write("out/config.json", "{}");
  expect_error(run("convert llama out"), 1, {"out/config.json' already exists", "--overwrite"});
  EXPECT_EQ(run("convert llama out --overwrite").status, 0);
  EXPECT_EQ(read(folder_ / "out" / "config.json"), read(folder_ / "llama" / "config.json"));
  EXPECT_EQ(run("convert llama alone/llama.safetensors").left,
            (std::vector<std::string>{"alone", "alone/llama.safetensors"}));
  EXPECT_EQ(run("convert llama nf4 --to nf4").left,
            (std::vector<std::string>{"nf4", "nf4/model.safetensors"}))
      << "the config.json would not describe the weights";
}

TEST_F(HuggingFace, AdaptersOnFourBitsHavePeftsNames) {
  const Outcome tuned =
      fit_llama("--weights llama --precision nf4-dq --lora r=2,targets=q_proj+v_proj --output run");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_FALSE(fs::exists(folder_ / "run" / "config.json")) << "transformers could not read these weights";
  std::vector<std::string> names;
  const json adapter = inspected("run/adapter/adapter_model.safetensors");
  for (const auto& tensor : adapter["tensors"]) names.push_back(tensor["name"]);
  EXPECT_EQ(names.size(), 2 * 2 * 2U);
  EXPECT_THAT(names, testing::Contains("base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"));
}

TEST_F(HuggingFace, APlanHasItsMemory) {
  const Outcome planned = fit_llama("--plan --precision 32-true --json result.json");
  ASSERT_EQ(planned.status, 0) << planned.err;
  int64_t parameters = 0;
  for (const at::Tensor& p : Llama(kOptions)->parameters()) parameters += p.numel();
  const json result = json::parse(read(folder_ / "result.json"));
  EXPECT_EQ(result["parameters"], parameters);
  for (const json& row : result["memory_plan"])
    if (row["precision"] == "32-true") {
      EXPECT_EQ(row["weights"], 4 * parameters);
    }
}

TEST_F(HuggingFace, WhatDoesNotFitIsNamedBeforeTheTraining) {
  expect_error(fit("--model hf:absent --data text:text.txt"), 1, {"absent", "config.json"});
  expect_error(fit("--model hf:llama --data digits"), 2, {"hf:llama cannot read --data digits"});
  expect_error(fit("--model hf:llama"), 2, {"--model hf:llama needs text"});
  json config = json::parse(read(folder_ / "llama" / "config.json"));
  config["max_position_embeddings"] = 64;
  write("short/config.json", config.dump());
  expect_error(fit("--model hf:short --data text:text.txt"), 1, {"context of 64 tokens"});
  config["hidden_act"] = "gelu";
  write("gelu/config.json", config.dump());
  expect_error(fit("--model hf:gelu --data text:text.txt"), 2, {"hidden_act \"gelu\" is not supported"});
  config["hidden_act"] = "silu", config["max_position_embeddings"] = 128, config["num_hidden_layers"] = 3;
  write("deep/config.json", config.dump());
  expect_error(fit("--model hf:deep --data text:text.txt --weights llama"), 1,
               {"'model.layers.2.input_layernorm.weight' is missing"});
}

}  // namespace
}  // namespace mantissa::cli::llama_test
