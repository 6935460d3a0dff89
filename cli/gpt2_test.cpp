// Tests of --model with GPT-2, whose public files have transposed weights.
#include <filesystem>

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"
#include "mantissa/models/gpt2_files.h"

namespace mantissa::cli::gpt2_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Gpt2Command : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    save_gpt2(*Gpt2(kOptions), folder_ / "public");
    std::string text;
    for (int i = 0; i < 600; ++i) text += "line " + std::to_string(i * 7919) + "\n";
    write("text.txt", text);
  }
  Outcome fit_gpt2(const std::string& arguments) const {
    return fit(
        "--model hf:public --weights public --data text:text.txt --batch-size 2 --limit-val-batches 1 "
        "--lr 0.001 --output run " +
        arguments);
  }
  /// The largest difference to the weights of the public folder.
  double distance(const Gpt2& model) const {
    double largest = 0;
    const auto before = load_gpt2(folder_ / "public")->named_parameters();
    for (const auto& item : model->named_parameters())
      largest = std::max(largest, (item.value() - before[item.key()]).abs().max().item<double>());
    return largest;
  }
  double loss(const std::string& arguments) const {
    const Outcome outcome = run("validate run --device cpu --quiet --json - " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out)["val_loss"];
  }

  const Gpt2Options kOptions{.vocab_size = 300, .n_positions = 128, .n_embd = 32, .n_layer = 2, .n_head = 4};
};

TEST_F(Gpt2Command, TheRunsFolderIsAPublicModel) {
  const Outcome trained = fit_gpt2("--precision 32-true --max-steps 2");
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Gpt2 read = load_gpt2(folder_ / "run");
  EXPECT_EQ(read->options(), kOptions);
  EXPECT_GT(distance(read), 0);
  EXPECT_LT(distance(read), 0.01) << "no weight is turned by accident, square ones included";
  const double from_file = loss("");
  fs::remove(folder_ / "run" / "weights.safetensors");
  EXPECT_EQ(loss(""), from_file) << "a checkpoint has the model's own form";
  const Outcome more = run("resume run --device cpu --quiet --max-steps 3");
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_LT(distance(load_gpt2(folder_ / "run")), 0.02);
  const Outcome made = run("generate run --prompt line --max-new-tokens 3 --device cpu --quiet");
  EXPECT_EQ(made.status, 0) << made.err;
}

TEST_F(Gpt2Command, QuantizedWeightsAndAdaptersAreReadBack) {
  for (const char* mode : {"nf4", "bf16-true"}) {
    const Outcome tuned =
        fit_gpt2(std::string("--max-steps 1 --lora r=2,targets=c_attn+c_proj --precision ") + mode);
    ASSERT_EQ(tuned.status, 0) << tuned.err;
    const double from_file = loss("");
    fs::remove(folder_ / "run" / "weights.safetensors");
    EXPECT_EQ(loss(""), from_file) << mode;
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(Gpt2Command, AMergedModelIsAPublicModel) {
  const Outcome tuned = fit_gpt2("--max-steps 2 --lora r=2,targets=c_attn+c_proj --precision nf4");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  fs::create_directory(folder_ / "merged");
  const Outcome merged = run("merge run --output merged/model.safetensors --dequantize");
  ASSERT_EQ(merged.status, 0) << merged.err;
  EXPECT_EQ(load_gpt2(folder_ / "merged")->options(), kOptions);
  EXPECT_EQ(run("generate merged --device cpu --quiet --prompt-tokens 1,2 --max-new-tokens 3").status, 0);
  fs::remove(folder_ / "merged" / "model.safetensors");
  const Outcome again = run("merge run --output merged/model.safetensors --dequantize");
  EXPECT_THAT(again.err, testing::HasSubstr("'merged/config.json' already exists"));
  fs::create_directory(folder_ / "packed");
  EXPECT_EQ(run("merge run --output packed/model.safetensors").status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "packed" / "config.json")) << "transformers has no such weights";
}

TEST_F(Gpt2Command, OptionsThatSaveMemoryChangeNoResult) {
  const auto trained = [&](const std::string& options) {
    fs::remove_all(folder_ / "run");
    const Outcome outcome =
        fit_gpt2("--precision bf16-mixed --max-steps 2 --seed 3 --json - --quiet " + options);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json plain = trained(""), layers = trained("--activation-checkpointing");
  EXPECT_EQ(layers["val_loss"], plain["val_loss"]);
  EXPECT_EQ(layers["train_loss"], plain["train_loss"]);
  const json chunked = trained("--loss-chunk 50");
  EXPECT_NEAR(chunked["val_loss"].get<double>(), plain["val_loss"].get<double>(), 1e-3);
  EXPECT_NEAR(loss("--loss-chunk 7"), loss("--loss-chunk 0"), 1e-5);
}

TEST_F(Gpt2Command, OptionsThatSaveMemoryNeedAModelThatCanUseThem) {
  const Outcome layers = fit("--model mlp --data digits --activation-checkpointing --output images");
  EXPECT_THAT(layers.err, testing::HasSubstr("--model mlp has no layers that can be computed again"));
  const Outcome chunks = fit("--model mlp --data digits --loss-chunk 8 --output images");
  EXPECT_THAT(chunks.err,
              testing::HasSubstr("--loss-chunk 8 divides the positions of a text, and --model mlp"));
  EXPECT_FALSE(fs::exists(folder_ / "images"));
  EXPECT_EQ(fit("--loss-chunk -1").status, 2);
}

TEST_F(Gpt2Command, PublicSizesAreKnownByTheirNames) {
  EXPECT_THAT(run("fit --help").out, testing::HasSubstr("gpt2-xl"));
  expect_error(fit("--model gpt2-medium --data digits"), 2, {"gpt2-medium cannot read --data digits"});
  expect_error(fit("--model gpt2-medium"), 2, {"--model gpt2-medium needs text"});
}

}  // namespace
}  // namespace mantissa::cli::gpt2_test
