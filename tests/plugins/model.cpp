// A plug-in with a model of its own. Each definition makes one that a program refuses.
#include <memory>
#include <stdexcept>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/plugin.h"

namespace {

struct Images final : mantissa::TensorModule {
  explicit Images(const mantissa::ModelInput& input)
      : first(input.channels * input.height * input.width, 16), second(16, input.classes) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) override { return second(first(x.flatten(1)).relu()); }

  torch::nn::Linear first, second;
};

struct Tokens final : mantissa::TensorModule {
  explicit Tokens(const mantissa::ModelInput& input)
      : embedding(input.vocabulary, 8), out(8, input.vocabulary) {
    register_module("embedding", embedding);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) override { return out(embedding(x)); }

  torch::nn::Embedding embedding;
  torch::nn::Linear out;
};

}  // namespace

#if defined(READS_TOKENS)
MANTISSA_MODEL_PLUGIN("an embedding and a layer", mantissa::InputKind::kTokens,
                      [](const mantissa::ModelInput& input) { return std::make_shared<Tokens>(input); })
#elif defined(THROWS)
MANTISSA_MODEL_PLUGIN("throws", mantissa::InputKind::kImages,
                      [](const mantissa::ModelInput&) -> std::shared_ptr<mantissa::TensorModule> {
                        throw std::runtime_error("this model is never made");
                      })
#elif defined(RETURNS_NOTHING)
MANTISSA_MODEL_PLUGIN("returns nothing", mantissa::InputKind::kImages,
                      [](const mantissa::ModelInput&) { return std::shared_ptr<Images>(); })
#elif defined(OTHER_INTERFACE) || defined(OTHER_TORCH) || defined(OTHER_COMPILER)
extern "C" __attribute__((visibility("default"))) const mantissa::ModelPlugin* mantissa_model_plugin() {
  static mantissa::ModelPlugin plugin{};
#if defined(OTHER_INTERFACE)
  plugin.version.interface_number = 77;
#elif defined(OTHER_TORCH)
  plugin.version.torch = "1.0.0";
#else
  plugin.version.compiler = 1;
#endif
  return &plugin;
}
#else
#if defined(CALLS_WHAT_IS_MISSING)
void function_of_another_library();
#else
static void function_of_another_library() {}
#endif
MANTISSA_MODEL_PLUGIN("two layers", mantissa::InputKind::kImages, [](const mantissa::ModelInput& input) {
  function_of_another_library();
  return std::make_shared<Images>(input);
})
#endif
