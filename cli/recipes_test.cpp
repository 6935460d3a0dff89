// Tests of the recipes in configs/: each trains on small data of the kind that it is for.
#include <filesystem>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"
#include "mantissa/data/images/codecs_internal.h"
#include "mantissa/data/images/test_support_internal.h"
#include "mantissa/models/gpt2_files.h"
#include "mantissa/models/llama_files.h"

namespace mantissa::cli::recipes_test {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

/// What each recipe needs besides, to take two steps here.
const std::map<std::string, std::string> kMiniatures = {
    {"digits.yaml", "--max-steps 2"},
    {"mnist.yaml", "--data idx:idx --batch-size 4 --max-steps 2"},
    {"fashion-mnist.yaml", "--data idx:idx --batch-size 4 --max-steps 2"},
    {"cifar10.yaml", "--data cifar10:cifar --batch-size 5 --max-steps 2"},
    {"resnet50.yaml",
     "--data images:photos --image-size 32 --batch-size 2 --num-workers 1 --max-steps 2 "
     "--no-enable-checkpointing"},
    {"vit-l-16.yaml",
     "--data images:photos --image-size 32 --model vit_tiny_patch16_224 --weights vit/weights.safetensors "
     "--batch-size 2 --num-workers 1 --accumulate-grad-batches 2 --max-steps 2"},
    {"shakespeare.yaml", "--data text:text.txt --batch-size 2 --max-steps 2"},
    {"gpt2.yaml",
     "--data text:text.txt --tokenizer llama --model hf:gpt2 --context 16 --batch-size 2 "
     "--accumulate-grad-batches 2 --max-steps 2"},
    {"llama-lora.yaml",
     "--data chat:chat.jsonl --model hf:llama --weights llama --tokenizer llama --context 16 --batch-size 2 "
     "--accumulate-grad-batches 2 --max-steps 2"},
};

class Recipes : public Program,
                public testing::WithParamInterface<std::pair<const std::string, std::string>> {
 protected:
  void SetUp() override {
    Program::SetUp();
    write("idx/images-idx3-ubyte", idx_header(8, {40, 28, 28}) + std::string(40 * 28 * 28, '\7'));
    write("idx/labels-idx1-ubyte", idx_header(8, {40}) + std::string(40, '\1'));
    write("cifar/data_batch_1.bin", std::string(20 * 3073, '\3'));
    for (const std::string name :
         {"train/dark/0.jpg", "train/light/0.jpg", "val/dark/0.jpg", "val/light/0.jpg"})
      write("photos/" + name, encode_jpeg(gradient_image(40, 60), 90, name));
    std::string text, chat;
    for (int i = 0; i < 600; ++i) text += "ab abc ";
    for (int i = 0; i < 20; ++i) chat += "{\"prompt\": \"ab\", \"completion\": \"c\"}\n";
    write("text.txt", text), write("chat.jsonl", chat);
    save_gpt2(
        *Gpt2(Gpt2Options{.vocab_size = 16, .n_positions = 16, .n_embd = 32, .n_layer = 1, .n_head = 2}),
        folder_ / "gpt2");
    save_llama(*Llama(LlamaOptions{.vocab_size = 16,
                                   .hidden_size = 32,
                                   .intermediate_size = 64,
                                   .num_hidden_layers = 1,
                                   .num_attention_heads = 2,
                                   .num_key_value_heads = 1,
                                   .max_position_embeddings = 16}),
               folder_ / "llama");
    write("llama/vocab.json", R"({"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "<|endoftext|>": 6})");
    write("llama/merges.txt", "#version: 0.2\na b\nĠ ab\n");
  }
};

TEST_P(Recipes, TrainOnSmallData) {
  const auto& [recipe, arguments] = GetParam();
  if (recipe == "vit-l-16.yaml") {
    const Outcome made =
        fit("--data cifar10:cifar --model vit_tiny_patch16_224 --max-steps 0 --num-sanity-val-steps 0 "
            "--limit-val-batches 0 --precision 32-true --output vit");
    ASSERT_EQ(made.status, 0) << made.err;
  }
  const Outcome trained =
      fit("--config " MANTISSA_CONFIGS "/" + recipe + " " + arguments + " --output run --json result.json");
  ASSERT_EQ(trained.status, 0) << trained.err;
  const json result = json::parse(read(folder_ / "result.json"));
  EXPECT_EQ(result["steps"], 2);
  EXPECT_TRUE(result["train_loss"].is_number()) << "null stands for nan";
  EXPECT_TRUE(fs::exists(folder_ / "run/weights.safetensors"));
  EXPECT_EQ(fs::exists(folder_ / "run/adapter/adapter_config.json"), recipe == "llama-lora.yaml");
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, testing::ValuesIn(kMiniatures), [](const auto& test) {
  std::string name = fs::path(test.param.first).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(RecipeFiles, AreAllTested) {
  std::set<std::string> files, tested;
  for (const auto& entry : fs::directory_iterator(MANTISSA_CONFIGS)) files.insert(entry.path().filename());
  for (const auto& [recipe, arguments] : kMiniatures) tested.insert(recipe);
  EXPECT_EQ(files, tested);
}

}  // namespace
}  // namespace mantissa::cli::recipes_test
