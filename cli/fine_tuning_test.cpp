// Tests of fine-tuning from a file of weights: fit --new-head and --train-only.
#include <map>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"
#include "mantissa/io/safetensors.h"

namespace mantissa::cli::fine_tuning_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

/// A base model for images of 5 classes, and images of 7.
class FineTuning : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    write_images("few", std::string("\0\1\2\3\4\0\1\2", 8));
    write_images("many", std::string("\0\1\2\3\4\5\6\0", 8));
    ASSERT_EQ(train("--data idx:few --classes 5 --model mlp --output base").status, 0);
  }
  void write_images(const std::string& name, const std::string& labels) const {
    const auto count = static_cast<uint32_t>(labels.size());
    std::string pixels;
    for (uint32_t i = 0; i < count * 16; ++i) pixels += static_cast<char>(i * 37 % 251);
    write(name + "/a-images-idx3-ubyte", idx_header(8, {count, 4, 4}) + pixels);
    write(name + "/a-labels-idx1-ubyte", idx_header(8, {count}) + labels);
  }
  Outcome train(const std::string& arguments) const {
    return fit("--max-steps 2 --lr 0.1 --lr-schedule constant --val-fraction 0.25 " + arguments);
  }
  Outcome tune(const std::string& arguments) const {
    return train("--data idx:many --classes 7 --model mlp --weights base/weights.safetensors --output run " +
                 arguments);
  }
  std::map<std::string, at::Tensor> weights(const std::string& run) const {
    return load_safetensors(folder_ / run / "weights.safetensors").tensors;
  }
  void expect_same(const char* name) const {
    EXPECT_TRUE(at::equal(weights("run").at(name), weights("base").at(name))) << name;
  }
};

TEST_F(FineTuning, AnotherNumberOfClassesNeedsANewHead) {
  expect_error(tune(""), 1,
               {"'layers.2.weight' has shape [5, 128] in the file, [7, 128] in the module",
                "only the output layer differs: --new-head leaves it out"});
  const Outcome tuned = tune("--new-head --train-only head");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_THAT(tuned.err, IsEmpty());
  for (const char* name : {"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"})
    expect_same(name);
  EXPECT_EQ(weights("run").at("layers.2.weight").sizes(), (at::IntArrayRef{7, 128}));
  const auto result = nlohmann::json::parse(read(folder_ / "run/result.json"));
  EXPECT_EQ(result["trained_parameters"], 7 * 128 + 7);
  // The run knows its own head.
  const Outcome tested = run("test run --device cpu --quiet");
  EXPECT_EQ(tested.status, 0) << tested.err;
}

TEST_F(FineTuning, WithoutTrainOnlyAllLayersLearn) {
  ASSERT_EQ(tune("--new-head").status, 0);
  EXPECT_FALSE(at::equal(weights("run").at("layers.0.weight"), weights("base").at("layers.0.weight")));
}

TEST_F(FineTuning, AFlagTakesAwayTheFileThatAConfigurationNames) {
  write("tune.yaml",
        "data: idx:many\nclasses: 7\nmodel: mlp\nweights: missing.safetensors\nadapter: missing\n");
  expect_error(train("--config tune.yaml --adapter none"), 1, {"missing.safetensors"});
  ASSERT_EQ(train("--config tune.yaml --adapter none --weights none --output none").status, 0);
  ASSERT_EQ(train("--data idx:many --classes 7 --model mlp --output random").status, 0);
  EXPECT_TRUE(at::equal(weights("none").at("layers.0.weight"), weights("random").at("layers.0.weight")));
  expect_error(run("validate random --weights none"), 2, {"--weights none", "leave it out"});
}

TEST_F(FineTuning, AFileMayLackTheHeadAndNothingElse) {
  auto stored = weights("base");
  stored.erase("layers.2.weight"), stored.erase("layers.2.bias");
  save_safetensors(folder_ / "base/weights.safetensors", stored, {}, Links::kReplace);
  expect_error(tune(""), 1, {"'layers.2.bias' is missing in the file", "--new-head"});
  const Outcome tuned = tune("--new-head");
  EXPECT_EQ(tuned.status, 0) << tuned.err;
  stored.erase("layers.0.bias"), stored["extra"] = at::ones({1}), stored["layers.1.bias"] = at::ones({3});
  save_safetensors(folder_ / "base/weights.safetensors", stored, {}, Links::kReplace);
  EXPECT_THAT(tune("").err, testing::Not(testing::HasSubstr("--new-head"))) << "other layers differ as well";
  expect_error(
      tune("--new-head"), 1,
      {"3 places", "'layers.0.bias' is missing", "'extra' is unknown", "'layers.1.bias' has shape [3]"});
}

TEST_F(FineTuning, NamesSelectParametersModulesAndPatterns) {
  ASSERT_EQ(tune("--new-head --train-only '*.bias,layers.1'").status, 0);
  expect_same("layers.0.weight");
  for (const char* name : {"layers.0.bias", "layers.1.weight", "layers.1.bias"})
    EXPECT_FALSE(at::equal(weights("run").at(name), weights("base").at(name))) << name;
}

TEST_F(FineTuning, AResumedRunKeepsFrozenWhatWasFrozen) {
  ASSERT_EQ(tune("--new-head --train-only head").status, 0);
  const auto before = weights("run").at("layers.2.weight").clone();
  const Outcome resumed = run("resume run --device cpu --quiet --max-steps 4");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  expect_same("layers.1.weight");
  EXPECT_FALSE(at::equal(weights("run").at("layers.2.weight"), before));
}

TEST_F(FineTuning, AnAdapterLearnsBesideTheNewHead) {
  expect_error(tune("--new-head --lora r=2 --train-only head"), 2,
               {"'layers.2.weight' has an adapter, so it cannot be trained directly", "(exclude=...)"});
  const Outcome tuned = tune("--new-head --lora r=2,exclude=layers.2 --train-only head");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  expect_same("layers.0.weight");
  EXPECT_GT(weights("run").at("layers.0.lora_B.default.weight").abs().max().item<float>(), 0);
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "run/result.json"))["trained_parameters"],
            2 * (16 + 128) + 2 * (128 + 128) + 7 * 128 + 7);
}

TEST_F(FineTuning, AQuantizedWeightIsTrainedOnlyInFloat) {
  ASSERT_EQ(run("convert base/weights.safetensors base4.safetensors --to nf4").status, 0);
  const auto train_head = [&](const std::string& options) {
    return train(
        "--data idx:few --classes 5 --model mlp --precision nf4 --weights base4.safetensors --train-only "
        "head " +
        options);
  };
  expect_error(
      train_head(""), 2,
      {"'layers.2.weight' is quantized, so it cannot be trained directly", "or keep its layer in float"});
  expect_error(
      train_head("--lora r=2"), 2,
      {"has an adapter and is quantized", "(exclude=...) and keep its layer in float (--ignore-modules)"});
  const Outcome tuned = train_head("--lora r=2,exclude=layers.2 --ignore-modules layers.2 --output run");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_EQ(weights("run").at("layers.2.weight").scalar_type(), at::kFloat);
}

TEST_F(FineTuning, AQuantizedFileGetsANewHead) {
  ASSERT_EQ(run("convert base/weights.safetensors base4.safetensors --to nf4").status, 0);
  const Outcome tuned = train(
      "--data idx:many --classes 7 --model mlp --precision nf4 --weights base4.safetensors --new-head --lora "
      "r=2 --output run");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  expect_same("layers.1.bias");
}

TEST_F(FineTuning, AnOutputLayerThatIsTheTableOfEmbeddingsIsNoHead) {
  write(
      "gpt/config.json",
      R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 4, "n_layer": 1, "n_head": 1})");
  write("text.txt", std::string(5000, 'a'));
  const std::string arguments =
      "--model hf:gpt --data text:text.txt --max-steps 1 --batch-size 2 --output run ";
  ASSERT_EQ(fit(arguments).status, 0);
  const std::string error = "does not end with a linear layer of its own, but with 'transformer.ln_f'";
  expect_error(fit(arguments + "--weights run/weights.safetensors --new-head"), 1, {"--new-head: ", error});
  expect_error(fit(arguments + "--weights run/weights.safetensors --train-only head"), 2,
               {"--train-only head: ", error});
}

TEST_F(FineTuning, WhatSelectsNothingIsNamed) {
  expect_error(tune("--new-head --train-only head,layer.1"), 2,
               {"--train-only 'layer.1' selects no parameter", "did you mean 'layers.1'"});
  fs::remove_all(folder_ / "run");
  expect_error(tune("--train-only head,,x"), 2, {"--train-only"});
  const Outcome outcome = train("--data idx:few --model mlp --new-head --output run");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("--new-head has no effect with no --weights"));
}

}  // namespace
}  // namespace mantissa::cli::fine_tuning_test
