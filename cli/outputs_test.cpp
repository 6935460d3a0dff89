// Tests that no command replaces what it reads, what a run has written, or another of its outputs.
#include <filesystem>

#include <torch/script.h>

#include "cli/test_support_internal.h"
#include "mantissa/models/llama_files.h"

namespace mantissa::cli::outputs_test {
namespace {

namespace fs = std::filesystem;

class Outputs : public Program {
 protected:
  /// Expects that the command is refused, and that the file stays as it is.
  void expect_keeps(const std::string& file, const std::string& command, const std::string& reason) const {
    const std::string before = read(folder_ / file);
    EXPECT_FALSE(before.empty()) << file;
    expect_error(run(command), 2, {reason});
    EXPECT_TRUE(read(folder_ / file) == before) << command;
  }
  void write_text() const {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "abc ab ";
    write("text.txt", text);
    write("tok/vocab.json", R"({"a":0,"b":1,"c":2,"Ġ":3,"ab":4,"Ġab":5})");
    write("tok/merges.txt", "#version: 0.2\na b\nĠ ab\n");
  }

  const std::string input_itself_ = "is the input itself; choose another place for the output";
};

TEST_F(Outputs, AModelsFileIsAnInput) {
  torch::jit::Module net("Net");
  net.register_parameter("weight", at::zeros({10, 64}).requires_grad_(), /*is_buffer=*/false);
  net.define("def forward(self, x):\n    return torch.linear(torch.flatten(x, 1), self.weight)\n");
  net.save(folder_ / "my.pt");
  const std::string jit = "--device cpu --quiet --model jit:my.pt --precision 32-true --max-steps 1 ";
  expect_keeps("my.pt", "fit " + jit + "--output run --json my.pt", "'my.pt' " + input_itself_);
  ASSERT_EQ(run("fit " + jit + "--output run").status, 0);
  expect_keeps("my.pt", "predict run --output my.pt --overwrite", input_itself_);
  expect_keeps("my.pt", "test run --json my.pt", input_itself_);
  expect_keeps("my.pt", "resume run --max-steps 2 --json my.pt", input_itself_);

  write_text();
  const LlamaOptions small{.vocab_size = 300,
                           .hidden_size = 32,
                           .intermediate_size = 64,
                           .num_hidden_layers = 1,
                           .num_attention_heads = 4,
                           .num_key_value_heads = 2,
                           .max_position_embeddings = 128};
  save_llama(*Llama(small), folder_ / "llama");
  expect_keeps("llama/config.json",
               "fit --device cpu --quiet --model hf:llama --data text:text.txt --json llama/config.json",
               "is a file of the input 'llama'");
  expect_keeps("llama/config.json", "generate llama --device cpu --prompt-tokens 1 --json llama/config.json",
               "is a file of the input 'llama'");
}

TEST_F(Outputs, AConfigurationIsAnInput) {
  write("config.yaml", "model: mlp\nmax_steps: 1\n");
  expect_keeps("config.yaml", "fit --device cpu --quiet --config config.yaml --json config.yaml",
               "'config.yaml' " + input_itself_);
}

TEST_F(Outputs, GenerateKeepsTheTokenizerAndTheWeights) {
  write_text();
  ASSERT_EQ(fit("--data text:text.txt --tokenizer tok --model llama-tiny --context 8 --batch-size 2 "
                "--max-steps 1 --limit-val-batches 1 --output run")
                .status,
            0);
  fs::copy_file(folder_ / "run/weights.safetensors", folder_ / "w.safetensors");
  fs::create_hard_link(folder_ / "w.safetensors", folder_ / "link.json");
  const std::string generate = "generate run --device cpu --prompt ab --max-new-tokens 1 --quiet ";
  expect_keeps("tok/vocab.json", generate + "--json tok/vocab.json", "is a file of the input");
  expect_keeps("w.safetensors", generate + "--weights w.safetensors --json w.safetensors", input_itself_);
  expect_keeps("link.json", generate + "--weights w.safetensors --json link.json", input_itself_);
  fs::copy(folder_ / "tok", folder_ / "moved");
  expect_keeps("moved/merges.txt", generate + "--tokenizer moved/vocab.json --json moved/merges.txt",
               input_itself_);
  EXPECT_EQ(run(generate + "--json moved/new.json").status, 0);
}

TEST_F(Outputs, ARunsAdapterAndWeightsAreNoOutput) {
  const std::string few = "--model mlp --max-steps 1 --precision 32-true ";
  ASSERT_EQ(fit(few + "--output base").status, 0);
  ASSERT_EQ(fit(few + "--lora r=2 --weights base/weights.safetensors --output run").status, 0);
  fs::copy_file(folder_ / "run/weights.safetensors", folder_ / "w.safetensors");
  const std::string adapter = "run/adapter/adapter_model.safetensors", of_run = "is a file of the run in";
  expect_keeps("w.safetensors", "merge run --weights w.safetensors --output w.safetensors --overwrite",
               input_itself_);
  expect_keeps(adapter, "merge run --output " + adapter + " --overwrite", of_run);
  expect_keeps(adapter, "predict run --overwrite --output " + adapter, of_run);
  expect_keeps("run/adapter/adapter_config.json", "test run --json run/adapter/adapter_config.json", of_run);
  expect_keeps("base/weights.safetensors", "convert w.safetensors base/weights.safetensors --overwrite",
               of_run);
  fs::create_directory(folder_ / "tuned");
  fs::copy(folder_ / "run/adapter", folder_ / "tuned/adapter");
  expect_error(fit(few + "--weights base/weights.safetensors --adapter tuned/adapter --output tuned"), 1,
               {"tuned already holds a run's adapter"});
}

TEST_F(Outputs, TwoOutputsAreTwoFiles) {
  write_text();
  const std::string twice = "is named for two outputs, of which one would be lost; name two files";
  expect_error(run("tokenize text.txt --tokenizer tok --output t.bin --json ./t.bin"), 2,
               {"'t.bin' " + twice});
  fs::create_directories(folder_ / "images/a");
  expect_error(run("pack images -o p.pack --json p.pack"), 2, {"'p.pack' " + twice});
  const Outcome both = run("tokenize text.txt --tokenizer tok --output t.bin --json -");
  EXPECT_EQ(both.status, 0) << both.err;
}

}  // namespace
}  // namespace mantissa::cli::outputs_test
