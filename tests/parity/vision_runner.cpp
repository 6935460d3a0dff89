// Runs a model of images. tests/parity/test_torchvision.py compares the results with those of torchvision.
//
//   vision_runner MODEL IN OUT WEIGHTS train|eval SAVED
//
// computes logits and gradients. MODEL is a name of the registry. IN has "images" [N, C, H, W] and "upstream" [N, classes],
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
#include "mantissa/models/registry.h"

namespace mantissa {
namespace {

std::shared_ptr<TensorModule> make(const std::string& name, const at::Tensor& images, int64_t classes,
                                   const std::string& weights) {
  const std::string seed = "seed:";
  if (weights.starts_with(seed)) at::manual_seed(std::stoull(weights.substr(seed.size())));
  auto model = make_model(name, {.kind = InputKind::kImages,
                                 .channels = images.size(1),
                                 .height = images.size(2),
                                 .width = images.size(3),
                                 .classes = classes});
  if (!weights.starts_with(seed)) load_weights(*model, weights);
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
  std::map<std::string, at::Tensor> result{{"logits", logits.detach()}, {"images", images.grad()}};
  for (const auto& item : model->named_parameters()) result["grad." + item.key()] = item.value().grad();
  save_safetensors(out, result);
  save_weights(*model, arguments[5]);
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
