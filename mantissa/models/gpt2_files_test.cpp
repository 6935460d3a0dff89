#include "mantissa/models/gpt2_files.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/safetensors.h"

namespace mantissa::gpt2_files_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const Gpt2Options kSmall{.vocab_size = 10, .n_positions = 8, .n_embd = 16, .n_layer = 2, .n_head = 4};

at::Tensor logits(Gpt2& model, const at::Tensor& tokens) {
  model->eval();  // there is dropout in training
  return model(tokens);
}

class Gpt2Files : public InFolder {};

TEST_F(Gpt2Files, ASavedModelIsReadBack) {
  Gpt2 model(kSmall);
  save_gpt2(*model, folder_);
  Gpt2 read = load_gpt2(folder_);
  EXPECT_EQ(read->options(), kSmall);
  const at::Tensor tokens = at::randint(10, {2, 8}, at::kLong);
  EXPECT_TRUE(at::equal(logits(read, tokens), logits(model, tokens)));
}

TEST_F(Gpt2Files, TheFileHasLinearWeightsTransposed) {
  Gpt2 model(kSmall);
  save_gpt2(*model, folder_);
  const SafetensorsFile file(folder_ / "model.safetensors");
  const std::string name = "transformer.h.1.attn.c_attn.weight";
  EXPECT_TRUE(at::equal(file.read(name), model->named_parameters()[name].t()));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(Gpt2Files, ShardsAreReadBack) {
  Gpt2 model(kSmall);
  save_gpt2(*model, folder_, /*max_shard_bytes=*/4000);
  EXPECT_TRUE(fs::exists(folder_ / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  Gpt2 read = load_gpt2(folder_);
  const at::Tensor tokens = at::randint(10, {2, 8}, at::kLong);
  EXPECT_TRUE(at::equal(logits(read, tokens), logits(model, tokens)));
}

TEST_F(Gpt2Files, SavesOverNoModel) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "config.json") << "{}";
  EXPECT_THAT(error_of([&] { save_gpt2(*Gpt2(kSmall), folder_); }),
              testing::AllOf(HasSubstr("save_gpt2"), HasSubstr("already has a config.json")));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
}

TEST_F(Gpt2Files, AFolderWithoutAConfigIsNamed) {
  EXPECT_THAT(error_of([&] { load_gpt2(folder_ / "absent"); }), HasSubstr("absent"));
}

}  // namespace
}  // namespace mantissa::gpt2_files_test
