// Runs two layers in a mode with quantized weights, for test_quantized_modes.py.
//
//   quantized_mode_runner MODE IN OUT    "x", "gy" and the weights of the layers, float or quantized: the weights as
//                                        the mode has them, "y", and the gradients of the biases as "grad.NAME"
//
// IN and OUT are safetensors files. A refused input ends the program with status 2 and its message.
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/core/error_message.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

void run(const std::string& name, const std::string& in, const std::string& out) {
  Tensors stored = load_safetensors(in).tensors;
  const at::Tensor x = stored.at("x"), gy = stored.at("gy");
  stored.erase("x"), stored.erase("gy");
  torch::nn::Sequential net(torch::nn::Linear(128, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64));
  const auto mode = make_precision(name, at::kCPU);
  mode->convert_module(*net);
  PartsLoader packed(*net, stored);
  load_weights(plain_weights(named_weights(*net)), stored, in);
  packed.load();
  at::Tensor y;
  {
    const Scope forward = mode->forward_context();
    y = net->forward(mode->convert_input(x));
  }
  y = mode->convert_output(y);
  mode->backward((y * gy).sum());
  Tensors results = named_parts(named_weights(*net));
  for (auto& [key, tensor] : results) tensor = tensor.detach();
  for (const auto& item : net->named_parameters())
    if (item.value().grad().defined()) results["grad." + item.key()] = item.value().grad();
  results["y"] = y.detach();
  save_safetensors(out, results);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: quantized_mode_runner MODE IN OUT\n", stderr);
    return 1;
  }
  try {
    mantissa::run(argv[1], argv[2], argv[3]);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 2;
  }
}
