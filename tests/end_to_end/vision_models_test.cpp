// The public models of images train in every mode. Miniatures have all of their layers.
#include <cctype>
#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "mantissa/models/torchvision_resnet.h"
#include "mantissa/models/vit.h"
#include "mantissa/precision/registry.h"

namespace mantissa::vision_models_test {
namespace {

std::shared_ptr<TensorModule> make(const std::string& kind) {
  if (kind == "vit")
    return std::make_shared<VitImpl>(VitOptions{.image_size = 16,
                                                .patch_size = 8,
                                                .num_layers = 2,
                                                .num_heads = 2,
                                                .hidden_dim = 64,
                                                .mlp_dim = 64,
                                                .num_classes = 64});
  return std::make_shared<TorchvisionResnetImpl>(
      TorchvisionResnetOptions{.classes = 64, .layers = {1, 1, 1, 1}, .bottleneck = true, .width = 8});
}

class EveryMode : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(EveryMode, LossesFall) {
  const auto& [kind, name] = GetParam();
  const FormatSupportInfo support = mode_support(find_mode(name), at::kCPU);
  if (support.support == FormatSupport::kUnavailable) GTEST_SKIP() << support.reason;
  torch::manual_seed(1);
  PrecisionOptions options;
  if (find_mode(name).traits.layer_products == Format::kFloat8E4M3) options.fp8_first_and_last = true;
  const auto mode = make_precision(name, at::kCPU, options);
  const auto model = make(kind);
  mode->convert_module(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  mode->setup_optimizer(optimizer);
  const at::Tensor images = torch::randn({32, 3, 16, 16}), target = torch::randint(4, {32}, torch::kLong);
  double first = 0, last = 0;
  for (int step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = torch::nn::functional::cross_entropy(
          model->forward(mode->convert_input(images)).to(torch::kFloat), target);
    }
    mode->backward(loss);
    mode->optimizer_step(optimizer);
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  EXPECT_NEAR(first, std::log(64), 1) << "64 classes that nothing is known of yet";
  EXPECT_LT(last, first);
}

std::vector<std::string> names_of_modes() {
  std::vector<std::string> names;
  for (const Mode& mode : modes()) names.push_back(mode.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(VisionModels, EveryMode,
                         testing::Combine(testing::Values("resnet", "vit"),
                                          testing::ValuesIn(names_of_modes())),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace mantissa::vision_models_test
