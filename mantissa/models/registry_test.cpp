#include "mantissa/models/registry.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <ATen/autocast_mode.h>

#include "mantissa/core/default_dtype.h"
#include "mantissa/models/convnet.h"
#include "mantissa/models/gpt.h"
#include "mantissa/models/llama.h"
#include "mantissa/models/llama_config.h"
#include "mantissa/models/mlp.h"
#include "mantissa/models/resnet.h"
#include "mantissa/models/torchvision_resnet.h"

namespace mantissa {

/// For test names: without it, gtest would print the row's bytes. It looks in the namespace of ModelEntry.
static void PrintTo(const ModelEntry& entry, std::ostream* out) { *out << entry.name; }

namespace registry_test {
namespace {

constexpr ModelInput kDigits{
    .kind = InputKind::kImages, .channels = 1, .height = 8, .width = 8, .classes = 10};
constexpr ModelInput kBytes{.kind = InputKind::kTokens, .vocabulary = 256, .context = 128};

std::string error_of(const std::string& name, const ModelInput& input) {
  try {
    make_model(name, input);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no ValueError";
}

TEST(Registry, UnknownNameIsAnsweredWithTheNearestAndTheList) {
  const std::string error = error_of("resnet-tinny", kDigits);
  EXPECT_THAT(error, testing::HasSubstr("'resnet-tinny'; did you mean 'resnet-tiny'?"));
  EXPECT_THAT(error, testing::HasSubstr("mlp, convnet, resnet-tiny, gpt-tiny, llama-tiny"));
  EXPECT_THAT(error_of("", kDigits), testing::HasSubstr("no model is called ''"));
}

TEST(Registry, WrongKindOfInputIsAnsweredWithThoseThatFit) {
  EXPECT_THAT(
      error_of("gpt-tiny", kDigits),
      testing::HasSubstr(
          "'gpt-tiny' reads tokens, and this data holds images; choose one of mlp, convnet, resnet-tiny"));
  EXPECT_THAT(error_of("mlp", kBytes), testing::EndsWith("choose one of gpt-tiny, llama-tiny"));
}

TEST(Registry, SizesThatTheModelRefuses) {
  ModelInput input = kDigits;
  input.height = 0;
  EXPECT_THAT(error_of("mlp", input), testing::HasSubstr("in_features > 0"));
  EXPECT_THAT(error_of("convnet", input), testing::HasSubstr("0x8"));
}

TEST(Registry, MakesTheNamedClass) {
  EXPECT_TRUE(std::dynamic_pointer_cast<MlpImpl>(make_model("mlp", kDigits)));
  EXPECT_TRUE(std::dynamic_pointer_cast<ConvnetImpl>(make_model("convnet", kDigits)));
  EXPECT_TRUE(std::dynamic_pointer_cast<ResnetImpl>(make_model("resnet-tiny", kDigits)));
  EXPECT_TRUE(std::dynamic_pointer_cast<GptImpl>(make_model("gpt-tiny", kBytes)));
  EXPECT_TRUE(std::dynamic_pointer_cast<LlamaImpl>(make_model("llama-tiny", kBytes)));
}

TEST(Registry, APublicResnetHasTheChannelsAndClassesOfItsData) {
  const auto model = std::dynamic_pointer_cast<TorchvisionResnetImpl>(make_model("resnet18", kDigits));
  ASSERT_TRUE(model);
  EXPECT_EQ(model->options().channels, 1);
  EXPECT_EQ(model->options().classes, 10);
  EXPECT_EQ(find_model("resnet50").input, InputKind::kImages);
}

TEST(Registry, AVisionTransformerNeedsSquareImagesOfWholePatches) {
  ModelInput input = kDigits;
  input.height = input.width = 24;
  EXPECT_THAT(error_of("vit_l_16", input), testing::HasSubstr("multiples of 16, and this data has 24x24"));
  input.height = input.width = 0;
  EXPECT_THAT(error_of("vit_b_16", input), testing::HasSubstr("image_size is 0"));
  input.height = 16, input.width = 32;
  EXPECT_THAT(error_of("vit_large_patch16_224", input), testing::HasSubstr("16x32; resize"));
  EXPECT_EQ(find_model("vit_base_patch16_224").input, InputKind::kImages);
}

TEST(Registry, MakesTheModelOfAConfig) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "registry_config";
  std::filesystem::create_directories(folder);
  const LlamaOptions options{.vocab_size = 256,
                             .hidden_size = 8,
                             .intermediate_size = 8,
                             .num_hidden_layers = 1,
                             .num_attention_heads = 2,
                             .max_position_embeddings = 128};
  std::ofstream(folder / "config.json") << make_llama_config(options, at::kFloat);
  const std::string name = "hf:" + folder.string();
  const auto model = std::dynamic_pointer_cast<LlamaImpl>(make_model(name, kBytes));
  ASSERT_TRUE(model);
  EXPECT_EQ(model->options().hidden_size, 8);
  EXPECT_EQ(find_model(name + "/config.json").input, InputKind::kTokens);
  EXPECT_THAT(error_of(name, kDigits), testing::HasSubstr("reads tokens, and this data holds images"));
  ModelInput longer = kBytes;
  longer.context = 129;
  EXPECT_THAT(error_of(name, longer),
              testing::HasSubstr("context of 128 tokens, and this data has 256 and 129"));
  ModelInput larger = kBytes;
  larger.vocabulary = 257;
  EXPECT_THAT(error_of(name, larger), testing::HasSubstr("vocabulary of 256"));
  std::filesystem::remove_all(folder);
}

class EveryModel : public testing::TestWithParam<ModelEntry> {
 protected:
  bool reads_images() const { return GetParam().input == InputKind::kImages; }
  std::shared_ptr<TensorModule> make() const {
    return make_model(GetParam().name, reads_images() ? kDigits : kBytes);
  }
  at::Tensor input(at::ScalarType dtype = at::kFloat) const {
    // 128 tokens, so that every learned position gets a gradient.
    return reads_images() ? at::randn({4, 1, 8, 8}, dtype) : at::randint(256, {2, 128}, at::kLong);
  }
};

TEST_P(EveryModel, GradientsReachEveryParameter) {
  torch::manual_seed(5);
  const auto model = make();
  model->forward(input()).square().mean().backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    EXPECT_GT(item.value().grad().abs().max().item<float>(), 0) << item.key();
  }
}

TEST_P(EveryModel, SameSeedGivesTheSameWeights) {
  torch::manual_seed(6);
  const auto first = make();
  torch::manual_seed(6);
  const auto second = make();
  const auto a = first->parameters(), b = second->parameters();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  EXPECT_FALSE(at::equal(make()->parameters()[0], a[0])) << "the next one draws other numbers";
}

TEST_P(EveryModel, FollowsTheDefaultDtype) {
  const auto model = [this] {
    const DefaultDtypeGuard guard(at::kDouble);
    return make();
  }();
  for (const at::Tensor& p : model->parameters()) EXPECT_EQ(p.scalar_type(), at::kDouble);
  EXPECT_EQ(model->forward(input(at::kDouble)).scalar_type(), at::kDouble);
}

TEST_P(EveryModel, RunsUnderAutocastWithFloat32Gradients) {
  const auto model = make();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  // The input is short, because a CPU without bf16 arithmetic takes seconds for a whole one.
  const at::Tensor output = model->forward(reads_images() ? input() : input().slice(1, 0, 8));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  output.to(at::kFloat).square().mean().backward();
  for (const at::Tensor& p : model->parameters()) EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
}

TEST_P(EveryModel, IsDescribedInOneLine) {
  EXPECT_FALSE(GetParam().summary.empty());
  EXPECT_EQ(GetParam().summary.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryModel, testing::ValuesIn(models()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace registry_test
}  // namespace mantissa
