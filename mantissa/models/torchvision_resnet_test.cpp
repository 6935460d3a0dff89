#include "mantissa/models/torchvision_resnet.h"

#include <cmath>
#include <functional>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/weights.h"

namespace mantissa::torchvision_resnet_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

TorchvisionResnetOptions small(bool bottleneck) {
  return {.classes = 5, .layers = {1, 2, 1, 1}, .bottleneck = bottleneck, .width = 4};
}

int64_t parameters_of(const TorchvisionResnetOptions& options) {
  int64_t count = 0;
  for (const at::Tensor& p : TorchvisionResnet(options)->parameters()) count += p.numel();
  return count;
}

TEST(TorchvisionResnet, PublicSizesHaveTheirNumbersOfParameters) {
  EXPECT_EQ(parameters_of(resnet18_options()), 11689512);
  EXPECT_EQ(parameters_of(resnet50_options()), 25557032);
}

TEST(TorchvisionResnet, HasTheNamesOfTorchvision) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : named_weights(*TorchvisionResnet(small(true)))) names.push_back(name);
  for (const char* name : {"conv1.weight", "bn1.running_var", "layer1.0.conv3.weight", "layer1.0.bn3.bias",
                           "layer1.0.downsample.0.weight", "layer2.0.downsample.1.num_batches_tracked",
                           "layer2.1.conv1.weight", "layer4.0.bn2.running_mean", "fc.weight", "fc.bias"})
    EXPECT_THAT(names, Contains(name));
  EXPECT_THAT(names, Not(Contains("layer2.1.downsample.0.weight")));
  const auto keys = TorchvisionResnet(small(false))->named_parameters().keys();
  EXPECT_THAT(keys, Not(Contains("layer1.0.downsample.0.weight"))) << "the shape does not change";
  EXPECT_THAT(keys, Not(Contains("layer1.0.conv3.weight")));
}

TEST(TorchvisionResnet, TakesImagesOfAnySizeAndChannels) {
  for (const bool bottleneck : {false, true}) {
    TorchvisionResnetOptions options = small(bottleneck);
    options.channels = 1;
    TorchvisionResnet model(options);
    model->eval();
    for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {33, 17}, {64, 64}})
      EXPECT_EQ(model(at::randn({2, 1, height, width})).sizes(), (at::IntArrayRef{2, 5}))
          << height << 'x' << width;
  }
}

TEST(TorchvisionResnet, TrainingMovesTheStatisticsAndEvaluationUsesThem) {
  torch::manual_seed(1);
  TorchvisionResnet model(small(true));
  const at::Tensor images = at::randn({4, 3, 40, 40});
  model(images).square().mean().backward();
  for (const at::Tensor& p : model->parameters()) EXPECT_TRUE(p.grad().isfinite().all().item<bool>());
  for (const auto& item : model->named_buffers()) {
    if (item.key().ends_with("num_batches_tracked")) {
      EXPECT_EQ(item.value().item<int64_t>(), 1) << item.key();
    }
  }
  model->eval();
  EXPECT_TRUE(at::allclose(model(images.narrow(0, 1, 1)), model(images).narrow(0, 1, 1), 1e-4, 1e-5))
      << "in evaluation a sample must not depend on its batch";
}

TEST(TorchvisionResnet, StartsFromTorchvisionsDistribution) {
  torch::manual_seed(2);
  for (const auto& item : TorchvisionResnet(resnet18_options())->named_parameters()) {
    const at::Tensor& p = item.value();
    if (p.dim() == 4) {
      EXPECT_NEAR(p.std().item<double>() * std::sqrt(p.size(0) * p.size(2) * p.size(3) / 2.0), 1, 0.05)
          << item.key();
    }
  }
}

TEST(TorchvisionResnet, RefusesWrongSizes) {
  const auto error_with = [](const std::function<void(TorchvisionResnetOptions&)>& change) {
    TorchvisionResnetOptions options = small(false);
    change(options);
    return error_of<c10::ValueError>([&] { TorchvisionResnet{options}; });
  };
  EXPECT_THAT(error_with([](auto& o) { o.channels = 0; }), HasSubstr("got 0, 5 and 4"));
  EXPECT_THAT(error_with([](auto& o) { o.classes = -1; }), HasSubstr("got 3, -1 and 4"));
  EXPECT_THAT(error_with([](auto& o) { o.width = 0; }), HasSubstr("got 3, 5 and 0"));
  EXPECT_THAT(error_with([](auto& o) { o.layers[3] = 0; }), HasSubstr("a stage of 0 blocks"));
  TorchvisionResnet model(small(false));
  EXPECT_THAT(error_of<c10::ValueError>([&] {
                model(at::zeros({2, 1, 8, 8}));
              }),
              HasSubstr("expects [N, 3, H, W]; got [2, 1, 8, 8]"));
  EXPECT_THROW(model(at::zeros({3, 8, 8})), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::torchvision_resnet_test
