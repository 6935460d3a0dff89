#include "mantissa/models/registry.h"

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/models/convnet.h"
#include "mantissa/models/gpt.h"
#include "mantissa/models/mlp.h"
#include "mantissa/models/resnet.h"

namespace mantissa {
namespace {

std::shared_ptr<TensorModule> make_mlp(const ModelInput& input) {
  return std::make_shared<MlpImpl>(
      MlpOptions{.in_features = input.channels * input.height * input.width, .classes = input.classes});
}

std::shared_ptr<TensorModule> make_convnet(const ModelInput& input) {
  return std::make_shared<ConvnetImpl>(ConvnetOptions{
      .channels = input.channels, .height = input.height, .width = input.width, .classes = input.classes});
}

std::shared_ptr<TensorModule> make_resnet(const ModelInput& input) {
  return std::make_shared<ResnetImpl>(ResnetOptions{.channels = input.channels, .classes = input.classes});
}

std::shared_ptr<TensorModule> make_gpt(const ModelInput& input) {
  return std::make_shared<GptImpl>(GptOptions{.context = input.context, .vocabulary = input.vocabulary});
}

std::vector<std::string> names_of_kind(InputKind kind) {
  std::vector<std::string> names;
  for (const ModelEntry& entry : models()) {
    if (entry.input == kind) names.push_back(entry.name);
  }
  return names;
}

}  // namespace

const char* input_kind_name(InputKind kind) { return kind == InputKind::kImages ? "images" : "tokens"; }

const std::vector<ModelEntry>& models() {
  static const std::vector<ModelEntry> table = {
      {"mlp", "two hidden layers of 128 with ReLU", InputKind::kImages, &make_mlp},
      {"convnet", "two 3x3 convolutions, max-pool, one hidden layer", InputKind::kImages, &make_convnet},
      {"resnet-tiny", "three basic blocks with batch norm, 32-64-128 channels", InputKind::kImages,
       &make_resnet},
      {"gpt-tiny", "transformer over bytes: 4 layers, 256 wide, 4 heads", InputKind::kTokens, &make_gpt},
  };
  return table;
}

std::shared_ptr<TensorModule> make_model(const std::string& name, const ModelInput& input) {
  std::vector<std::string> names;
  for (const ModelEntry& entry : models()) {
    names.push_back(entry.name);
    if (entry.name != name) continue;
    TORCH_CHECK_VALUE(entry.input == input.kind, "make_model: '", name, "' reads ",
                      input_kind_name(entry.input), ", and this data holds ", input_kind_name(input.kind),
                      "; choose one of ", join_names(names_of_kind(input.kind)));
    return entry.make(input);
  }
  TORCH_CHECK_VALUE(false, "make_model: no model is called '", name, "'", did_you_mean(name, names),
                    " (models: ", join_names(names), ")");
}

}  // namespace mantissa
