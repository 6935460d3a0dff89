#include <fstream>
#include <limits>

#include "mantissa/core/suggest.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/lora/adapter_files.h"
#include "mantissa/lora/test_support_internal.h"

namespace mantissa::lora_files_test {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class LoraFiles : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    torch::manual_seed(4);
    saved_ = folder_ / "new" / "adapter";
  }

  /// Saves an adapter with values of its own, and returns what the net computes with it.
  Tensor save(LoraNet& net, const LoraConfig& config) {
    const LoraModel lora(*net, config);
    randomize(*net);
    lora.save_pretrained(saved_);
    return net(x_).detach();
  }
  /// Changes one tensor of the saved file; an undefined one is removed.
  void edit(const std::string& key, const Tensor& value) {
    auto tensors = load_safetensors(saved_ / kAdapterWeights).tensors;
    tensors.erase(key);
    if (value.defined()) tensors[key] = value;
    save_safetensors(saved_ / kAdapterWeights, tensors);
  }
  std::string error_of_loading(LoraNet& net) {
    return error_of([&] { LoraModel::from_pretrained(*net, saved_); });
  }
  void expect_untouched(LoraNet& net) {
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().requires_grad() && !is_packed(item.value())) << item.key();
      EXPECT_EQ(item.key().find("lora"), std::string::npos) << item.key();
    }
  }

  std::filesystem::path saved_;
  const Tensor x_ = torch::randn({5, 6});
};

/// Returns a net with the weights of `net` and no adapter.
LoraNet twin_of(LoraNet& net) {
  LoraNet twin;
  const at::NoGradGuard no_grad;
  for (auto& item : twin->named_parameters())
    item.value().copy_(mantissa::dequantize(base_weight(parameter(*net, item.key()))));
  return twin;
}

TEST_F(LoraFiles, ALoadedAdapterComputesTheSame) {
  for (const auto& config :
       {LoraConfig{.r = 4, .lora_alpha = 12, .target_modules = {"up", "head"}},
        LoraConfig{.r = 4, .lora_alpha = 12, .use_rslora = true, .target_modules = ".*(up|down)"},
        LoraConfig{.r = 4, .use_dora = true}, LoraConfig{.r = 2, .rank_pattern = {{"down", 5}}}}) {
    LoraNet net;
    const Tensor expected = save(net, config);
    LoraNet twin = twin_of(net);
    LoraModel loaded = LoraModel::from_pretrained(*twin, saved_, "mine");
    EXPECT_TRUE(at::equal(twin(x_), expected));
    EXPECT_EQ(loaded.get_nb_trainable_parameters().first, 0) << "loaded for inference";
    LoraConfig read = loaded.config("mine");
    EXPECT_EQ(read.r, config.r);
    loaded.load_adapter(saved_, "trained", /*is_trainable=*/true);
    loaded.set_adapter("trained");
    EXPECT_TRUE(at::equal(twin(x_), expected));
    EXPECT_GT(loaded.get_nb_trainable_parameters().first, 0);
  }
}

TEST_F(LoraFiles, HasPeftsNames) {
  LoraNet net;
  save(net, {.r = 4, .use_dora = true, .target_modules = {"0.up"}});
  const SafetensorsFile file(saved_ / kAdapterWeights);
  EXPECT_THAT(keys_of(file.entries()), ElementsAre("base_model.model.blocks.0.up.lora_A.weight",
                                                   "base_model.model.blocks.0.up.lora_B.weight",
                                                   "base_model.model.blocks.0.up.lora_magnitude_vector"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  LoraNet other;
  save(other, {.r = 4});
  EXPECT_THAT(load_adapter_config(saved_).target_modules.ends(),
              ElementsAre("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"))
      << "all-linear is written as the layers that it meant";
}

TEST_F(LoraFiles, AnAdapterOf16BitsIsReadIntoFloat32) {
  LoraNet net;
  save(net, {.target_modules = {"head"}});
  const std::string key = "base_model.model.head.lora_A.weight";
  const Tensor values = torch::randn({8, 6}).to(at::kBFloat16);
  edit(key, values);
  LoraNet twin;
  const LoraModel lora = LoraModel::from_pretrained(*twin, saved_);
  EXPECT_TRUE(at::equal(parameter(*twin, "head.lora_A.default.weight"), values.to(at::kFloat)));
}

TEST_F(LoraFiles, AnAdapterOfAnotherRankOrModelIsRefusedBeforeAnythingChanges) {
  LoraNet net;
  save(net, {.r = 4, .target_modules = {"up", "head"}});
  const std::string a = "base_model.model.head.lora_A.weight", b = "base_model.model.head.lora_B.weight";
  const auto original = load_safetensors(saved_ / kAdapterWeights).tensors;
  const auto error_after = [&](const std::string& key, const Tensor& value) {
    save_safetensors(saved_ / kAdapterWeights, original);
    edit(key, value);
    LoraNet twin;
    const std::string error = error_of_loading(twin);
    expect_untouched(twin);
    return error;
  };
  EXPECT_THAT(error_after(a, torch::zeros({5, 6})),
              AllOf(HasSubstr(a), HasSubstr("[5, 6]"), HasSubstr("rank 4"), HasSubstr("[4, 6]")));
  EXPECT_THAT(error_after(b, torch::zeros({7, 4})), AllOf(HasSubstr(b), HasSubstr("[7, 4]")));
  EXPECT_THAT(error_after(a, {}), AllOf(HasSubstr("lacks"), HasSubstr(a)));
  EXPECT_THAT(error_after(a, torch::zeros({4, 6}, at::kInt)), HasSubstr("Int"));
  Tensor bad = torch::zeros({4, 6});
  bad[3][5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error_after(a, bad), AllOf(HasSubstr(a), HasSubstr("nan")));
  EXPECT_THAT(
      error_after("base_model.model.tail.lora_A.weight", torch::zeros({4, 6})),
      AllOf(HasSubstr("'tail'"), HasSubstr("does not have"), HasSubstr("give the model that the adapter")));
  EXPECT_THAT(error_after("base_model.model.norm.lora_A.weight", torch::zeros({4, 6})),
              AllOf(HasSubstr("'norm'"), HasSubstr("LayerNorm")));
  EXPECT_THAT(error_after("head.weight", torch::zeros({3, 6})), HasSubstr("'head.weight'"));
  EXPECT_THAT(error_after("base_model.model.head.lora_embedding_A", torch::zeros({3})),
              HasSubstr("does not belong to an adapter"));
  EXPECT_THAT(error_after("base_model.model.head.lora_magnitude_vector", torch::zeros({3})),
              AllOf(HasSubstr("magnitude"), HasSubstr("use_dora")));
}

TEST_F(LoraFiles, AFileThatLacksALayerOfItsTargetsIsRefused) {
  LoraNet net;
  save(net, {.r = 4, .target_modules = {"up", "head"}});
  edit("base_model.model.head.lora_A.weight", {});
  edit("base_model.model.head.lora_B.weight", {});
  LoraNet twin;
  EXPECT_THAT(error_of_loading(twin), AllOf(HasSubstr("'head'"), HasSubstr("up, head")));
  expect_untouched(twin);
}

TEST_F(LoraFiles, AFileWithMoreLayersThanItsTargetsIsRefused) {
  LoraNet net;
  save(net, {.r = 4});
  const auto all = load_safetensors(saved_ / kAdapterWeights).tensors;
  LoraNet small;
  save(small, {.r = 4, .target_modules = {"blocks.0.up"}});
  save_safetensors(saved_ / kAdapterWeights, all);
  LoraNet twin;
  EXPECT_THAT(error_of_loading(twin),
              AllOf(HasSubstr("has weights for blocks.0.down, blocks.1.down, blocks.1.up and 1 more"),
                    HasSubstr("add the layers to its target_modules")));
  expect_untouched(twin);
  LoraNet excluding;
  save(excluding, {.r = 4, .target_modules = {"up", "down", "head"}, .exclude_modules = {"head"}});
  save_safetensors(saved_ / kAdapterWeights, all);
  EXPECT_THAT(error_of_loading(twin), HasSubstr("has weights for head, which"));
}

TEST_F(LoraFiles, DoraWithoutItsMagnitudesIsRefused) {
  LoraNet net;
  save(net, {.use_dora = true, .target_modules = {"head"}});
  edit("base_model.model.head.lora_magnitude_vector", {});
  LoraNet twin;
  EXPECT_THAT(error_of_loading(twin), AllOf(HasSubstr("no magnitude"), HasSubstr("use_dora")));
  expect_untouched(twin);
}

TEST_F(LoraFiles, TruncatedAndMissingFilesAreRefused) {
  LoraNet net, twin;
  save(net, {});
  const auto weights = saved_ / kAdapterWeights, config = saved_ / kAdapterConfig;
  const auto size = std::filesystem::file_size(weights);
  for (const auto left : {size - 1, size / 2, uintmax_t{9}, uintmax_t{0}}) {
    std::filesystem::resize_file(weights, left);
    EXPECT_THAT(error_of_loading(twin), HasSubstr("adapter_model.safetensors")) << left;
  }
  std::filesystem::remove(weights);
  EXPECT_THAT(error_of_loading(twin), HasSubstr("adapter_model.safetensors"));
  std::filesystem::resize_file(config, 20);
  EXPECT_THAT(error_of_loading(twin), HasSubstr("adapter_config.json"));
  std::filesystem::remove(config);
  EXPECT_THAT(error_of_loading(twin), AllOf(HasSubstr("holds no adapter"), HasSubstr("save_pretrained()")));
  saved_ = folder_ / "nowhere";
  EXPECT_THAT(error_of_loading(twin), HasSubstr("nowhere"));
  expect_untouched(twin);
}

TEST_F(LoraFiles, AnEmptyFileIsNoAdapter) {
  LoraNet net, twin;
  save(net, {});
  save_safetensors(saved_ / kAdapterWeights, {});
  EXPECT_THAT(error_of_loading(twin), HasSubstr("holds no adapter"));
}

TEST_F(LoraFiles, SavingReplacesTheFilesAndNamesWhatFails) {
  LoraNet net;
  save(net, {.r = 2});
  LoraNet second;
  save(second, {.r = 3});
  EXPECT_EQ(load_adapter_config(saved_).r, 3);
  LoraNet third;
  const LoraModel lora(*third, {});
  EXPECT_THAT(error_of([&] { lora.save_pretrained(saved_, "other"); }), HasSubstr("no adapter 'other'"));
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THAT(error_of([&] { lora.save_pretrained(folder_ / "file" / "adapter"); }),
              HasSubstr("cannot make"));
}

TEST_F(LoraFiles, AnAdapterFitsAPackedBase) {
  LoraNet net;
  pack_blocks(net);
  const Tensor expected = save(net, {.use_dora = true});
  LoraNet twin = twin_of(net);
  pack_blocks(twin);
  const LoraModel lora = LoraModel::from_pretrained(*twin, saved_);
  EXPECT_TRUE(at::allclose(twin(x_), expected, 1e-5, 1e-5));
}

}  // namespace
}  // namespace mantissa::lora_files_test
