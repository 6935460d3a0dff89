// Runs a model of images. tests/parity/test_torchvision.py compares the results with those of torchvision and timm.
//
//   vision_runner MODEL IN OUT WEIGHTS train|eval SAVED
//
// computes logits and gradients. MODEL is a name of the registry, or vit-small-torchvision or vit-small-timm. IN has "images" [N, C, H, W] and "upstream" [N, classes],
// the gradient of the logits. OUT has "logits" and the gradients under "images" and "grad.<name>". WEIGHTS is a file, or
// seed:N for random weights. SAVED receives the weights and buffers after the forward pass.
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/public_model.h"
#include "mantissa/models/registry.h"
#include "mantissa/models/vit.h"
#include "mantissa/models/weight_form.h"

namespace mantissa {
namespace {

std::shared_ptr<TensorModule> make_any(const std::string& name, const ModelInput& input) {
  if (!name.starts_with("vit-small-")) return make_model(name, input);
  return std::make_shared<VitImpl>(
      VitOptions{.image_size = input.height,
                 .patch_size = 8,
                 .num_layers = 3,
                 .num_heads = 4,
                 .hidden_dim = 48,
                 .mlp_dim = 96,
                 .num_classes = input.classes,
                 .names = name == "vit-small-timm" ? VitNames::kTimm : VitNames::kTorchvision});
}

std::shared_ptr<TensorModule> make(const std::string& name, const at::Tensor& images, int64_t classes,
                                   const std::string& weights) {
  const std::string seed = "seed:";
  if (weights.starts_with(seed)) at::manual_seed(std::stoull(weights.substr(seed.size())));
  auto model = make_any(name, {.kind = InputKind::kImages,
                               .channels = images.size(1),
                               .height = images.size(2),
                               .width = images.size(3),
                               .classes = classes});
  if (weights.starts_with(seed)) return model;
  auto* const known = dynamic_cast<PublicModel*>(model.get());
  known ? load_weight_file(*known, weights) : load_weights(*model, weights);
  return model;
}

void run(char** arguments) {
  const std::string name = arguments[0], in = arguments[1], out = arguments[2], weights = arguments[3];
  const Safetensors given = load_safetensors(in);
  const at::Tensor images = given.tensors.at("images").requires_grad_();
  const at::Tensor& upstream = given.tensors.at("upstream");
  const auto model = make(name, images, upstream.size(1), weights);
  model->train(std::string(arguments[4]) == "train");
  const at::Tensor logits = model->forward(images);
  logits.backward(upstream);
  std::map<std::string, at::Tensor> gradients, result{{"logits", logits.detach()}, {"images", images.grad()}};
  for (const auto& item : model->named_parameters()) gradients[item.key()] = item.value().grad();
  const auto* const known = dynamic_cast<const PublicModel*>(model.get());
  if (known) gradients = as_in_files(*known, gradients);
  for (const auto& [key, gradient] : gradients) result["grad." + key] = gradient;
  save_safetensors(out, result);
  known ? save_weight_file(*known, arguments[5]) : save_weights(*model, arguments[5]);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (argc != 7) {
    std::fprintf(stderr, "usage: vision_runner MODEL IN OUT WEIGHTS train|eval SAVED\n");
    return 1;
  }
  mantissa::run(argv + 1);
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "vision_runner: %s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "vision_runner: %s\n", error.what());
  return 1;
}
