#include "mantissa/models/llama_files.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include "mantissa/core/default_dtype.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"

namespace mantissa::llama_files_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

LlamaOptions small() {
  return {.vocab_size = 10,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .max_position_embeddings = 8,
          .rope_scaling = RopeScaling{.original_max_position_embeddings = 4}};
}

class LlamaFiles : public InFolder {};

TEST_F(LlamaFiles, ASavedModelIsReadBack) {
  Llama model(small());
  save_llama(*model, folder_);
  Llama read = load_llama(folder_);
  EXPECT_EQ(read->options(), small());
  const at::Tensor tokens = at::randint(10, {2, 8}, at::kLong);
  EXPECT_TRUE(at::equal(read(tokens), model(tokens)));
  EXPECT_EQ(SafetensorsFile(folder_ / "model.safetensors").metadata().at("format"), "pt");
}

TEST_F(LlamaFiles, ShardsAreReadBack) {
  Llama model(small());
  save_llama(*model, folder_, /*max_shard_bytes=*/4000);
  EXPECT_TRUE(fs::exists(folder_ / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  const at::Tensor tokens = at::randint(10, {2, 8}, at::kLong);
  EXPECT_TRUE(at::equal(load_llama(folder_)(tokens), model(tokens)));
}

TEST_F(LlamaFiles, ReadsInTheDefaultDtype) {
  save_llama(*Llama(small()), folder_);
  const DefaultDtypeGuard guard(at::kBFloat16);
  for (const auto& item : load_llama(folder_)->named_parameters())
    EXPECT_EQ(item.value().scalar_type(), at::kBFloat16) << item.key();
}

TEST_F(LlamaFiles, SavesOverNoModel) {
  Llama model(small());
  fs::create_directories(folder_);
  std::ofstream(folder_ / "config.json") << "{}";
  EXPECT_THAT(error_of([&] { save_llama(*model, folder_); }), HasSubstr("already has a config.json"));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors"));
  fs::remove(folder_ / "config.json");
  std::ofstream(folder_ / "model.safetensors.index.json") << "{}";
  EXPECT_THAT(error_of([&] { save_llama(*model, folder_); }), HasSubstr("model.safetensors.index.json"));
}

TEST_F(LlamaFiles, WrongWeightsAreNamedTogether) {
  Llama model(small());
  save_llama(*model, folder_);
  auto weights = named_weights(*model);
  weights.erase("model.norm.weight");
  weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({2});
  weights["lm_head.weight"] = at::ones({10, 15});
  save_safetensors(folder_ / "model.safetensors", weights);
  const std::string error = error_of([&] { load_llama(folder_); });
  EXPECT_THAT(error, HasSubstr("3 places"));
  EXPECT_THAT(error, HasSubstr("'model.norm.weight' is missing in the file"));
  EXPECT_THAT(error, HasSubstr("'model.layers.0.self_attn.rotary_emb.inv_freq' is unknown"));
  EXPECT_THAT(error, HasSubstr("'lm_head.weight' has shape [10, 15] in the file, [10, 16] in the module"));
}

TEST_F(LlamaFiles, AFolderWithoutAConfigIsNamed) {
  fs::create_directories(folder_);
  EXPECT_THAT(error_of([&] { load_llama(folder_); }), HasSubstr("config.json"));
  EXPECT_THAT(error_of([&] { load_llama_config(folder_ / "absent"); }), HasSubstr("absent"));
  std::ofstream(folder_ / "config.json") << std::string((1 << 20) + 1, ' ');
  EXPECT_THAT(error_of([&] { load_llama_config(folder_); }), HasSubstr("more than 1 MiB"));
}

}  // namespace
}  // namespace mantissa::llama_files_test
