// A plug-in of a user's project: a model for `mantissa fit --model lib:FILE.so`.
#include "mantissa/models/plugin.h"

#include <memory>

#include <torch/nn/modules/linear.h>

namespace {

struct Net final : mantissa::TensorModule {
  explicit Net(const mantissa::ModelInput& input)
      : fc(input.channels * input.height * input.width, input.classes) {
    register_module("fc", fc);
  }
  at::Tensor forward(const at::Tensor& x) override { return fc(x.flatten(1)); }

  torch::nn::Linear fc;
};

}  // namespace

MANTISSA_MODEL_PLUGIN("one linear layer", mantissa::InputKind::kImages,
                      [](const mantissa::ModelInput& input) { return std::make_shared<Net>(input); })
