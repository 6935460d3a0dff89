#include "mantissa/models/resnet.h"

namespace mantissa::resnet_test {
namespace {

TEST(Resnet, CountsOfParametersAndBuffers) {
  Resnet model(ResnetOptions{.classes = 10});
  int64_t count = 0;
  for (const at::Tensor& p : model->parameters()) count += p.numel();
  const int64_t stem = 9 * 32 + 64, first = 2 * (9 * 32 * 32 + 64);
  const int64_t second = 9 * 32 * 64 + 9 * 64 * 64 + 32 * 64 + 3 * 128;
  const int64_t third = 9 * 64 * 128 + 9 * 128 * 128 + 64 * 128 + 3 * 256;
  EXPECT_EQ(count, stem + first + second + third + 128 * 10 + 10);
  EXPECT_EQ(model->buffers().size(), 9U * 3);  // mean, variance and counter of nine norms
}

TEST(Resnet, ShortcutExistsOnlyWhereTheShapeChanges) {
  Resnet model(ResnetOptions{.classes = 10});
  const auto parameters = model->named_parameters();
  EXPECT_FALSE(parameters.contains("blocks.0.shortcut_conv.weight"));
  EXPECT_TRUE(parameters.contains("blocks.1.shortcut_conv.weight"));
  EXPECT_TRUE(parameters.contains("blocks.2.shortcut_norm.bias"));
  EXPECT_THAT(parameters.keys(), testing::Contains("stem_conv.weight"));
  EXPECT_EQ(BasicBlock(4, 4, 2)->named_parameters().contains("shortcut_conv.weight"), true);
}

TEST(Resnet, BlockHalvesOddSizesUpwards) {
  EXPECT_EQ(BasicBlock(2, 6, 2)->forward(at::randn({3, 2, 7, 4})).sizes(), (at::IntArrayRef{3, 6, 4, 2}));
}

TEST(Resnet, TakesImagesOfAnySize) {
  Resnet model(ResnetOptions{.channels = 3, .classes = 5});
  for (const auto& [height, width] :
       std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {5, 9}, {28, 28}, {2, 1}}) {
    EXPECT_EQ(model(at::randn({4, 3, height, width})).sizes(), (at::IntArrayRef{4, 5}))
        << height << "x" << width;
  }
  EXPECT_THROW(model(at::randn({1, 3, 4, 4})), c10::Error)
      << "one value a channel has no variance to train on";
  model->eval();
  EXPECT_EQ(model(at::randn({1, 3, 1, 1})).sizes(), (at::IntArrayRef{1, 5}));
}

TEST(Resnet, TrainingMovesTheStatisticsAndEvaluationUsesThem) {
  Resnet model(ResnetOptions{.classes = 5});
  const at::Tensor images = at::randn({16, 1, 8, 8}) * 3 + 1;
  model(images);
  for (const auto& item : model->named_buffers()) {
    if (item.key().find("num_batches_tracked") != std::string::npos) {
      EXPECT_EQ(item.value().item<int64_t>(), 1) << item.key();
    }
  }
  model->eval();
  const at::Tensor alone = model(images.narrow(0, 3, 1)), together = model(images).narrow(0, 3, 1);
  EXPECT_TRUE(at::allclose(alone, together, 1e-4, 1e-5))
      << "in evaluation a sample must not depend on its batch";
}

TEST(Resnet, RefusesWrongSizes) {
  EXPECT_THROW(Resnet(ResnetOptions{.classes = 0}), c10::ValueError);
  EXPECT_THROW(Resnet(ResnetOptions{.classes = 2, .widths = {}}), c10::ValueError);
  EXPECT_THROW(Resnet(ResnetOptions{.classes = 2, .widths = {8, 0}}), c10::ValueError);
  Resnet model(ResnetOptions{.classes = 2});
  EXPECT_THROW(model(at::zeros({2, 3, 8, 8})), c10::ValueError);
  EXPECT_THROW(model(at::zeros({2, 8, 8})), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::resnet_test
