// Computes and trains a net of two linear layers with an adapter. test_lora.py compares the results with those of
// PEFT.
//
//   lora_runner compute IN OUT ADAPTER [nf4|fp4]   "fc1.weight", "fc1.bias", ..., "x", "gy": "y", the gradients
//                                                  "x.grad" and "NAME.grad" of the adapter's parameters, and
//                                                  "fc1.merged", ...; on weights of 4 bits in blocks of 64
//   lora_runner train IN OUT ADAPTER N             also "target": the adapter's parameters after N steps of SGD
//   lora_runner save IN OUT ADAPTER                an adapter with random values and the settings of ADAPTER, whose
//                                                  files it replaces by those of the adapter: "y"
//
// IN and OUT are safetensors files, ADAPTER is a folder as PEFT writes it. A refused input ends the program with
// status 2 and its message.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "mantissa/core/error_message.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/lora/adapter_files.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

struct Net : torch::nn::Module {
  explicit Net(const Tensors& in)
      : fc1(in.at("fc1.weight").size(1), in.at("fc1.weight").size(0)),
        fc2(in.at("fc2.weight").size(1), in.at("fc2.weight").size(0)) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    const at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) item.value().copy_(in.at(item.key()));
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(at::tanh(fc1(x))); }
  torch::nn::Linear fc1, fc2;
};

void quantize(Net& net, const std::string& format) {
  for (const at::Tensor& weight : {net.fc1->weight, net.fc2->weight}) {
    const Quantize4BitOptions options{.format = format == "nf4" ? Format::kNF4 : Format::kFP4,
                                      .blocksize = 64};
    replace_weight(weight, make_packed_weight(pack_4bit(weight.detach(), options, "a weight")));
  }
}

Tensors compute(const Tensors& in, const std::string& folder, const std::string& format) {
  Net net(in);
  if (!format.empty()) quantize(net, format);
  LoraModel lora = LoraModel::from_pretrained(net, folder, "default", /*is_trainable=*/true);
  at::Tensor x = in.at("x").set_requires_grad(true);
  const at::Tensor y = net.forward(x);
  y.backward(in.at("gy"));
  Tensors out{{"y", y.detach()}, {"x.grad", x.grad()}};
  for (const auto& item : net.named_parameters())
    if (item.value().grad().defined()) out[item.key() + ".grad"] = item.value().grad();
  lora.merge_adapter();
  out["fc1.merged"] = mantissa::dequantize(net.fc1->weight.detach());
  out["fc2.merged"] = mantissa::dequantize(net.fc2->weight.detach());
  return out;
}

Tensors train(const Tensors& in, const std::string& folder, int steps) {
  Net net(in);
  const LoraModel lora = LoraModel::from_pretrained(net, folder, "default", /*is_trainable=*/true);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::mse_loss(net.forward(in.at("x")), in.at("target")).backward();
    optimizer.step();
  }
  Tensors out;
  for (const auto& item : net.named_parameters())
    if (item.value().requires_grad()) out[item.key()] = item.value().detach();
  return out;
}

Tensors save(const Tensors& in, const std::string& folder) {
  Net net(in);
  LoraModel lora(net, load_adapter_config(folder));
  {
    const at::NoGradGuard no_grad;
    for (auto& item : net.named_parameters())
      if (item.value().requires_grad()) item.value().add_(at::randn_like(item.value()), 0.2);
  }
  lora.save_pretrained(folder);
  return {{"y", net.forward(in.at("x")).detach()}};
}

Tensors run(const std::vector<std::string>& arguments) {
  const Tensors in = load_safetensors(arguments.at(1)).tensors;
  const std::string& kind = arguments.at(0);
  if (kind == "compute") return compute(in, arguments.at(3), arguments.size() > 4 ? arguments[4] : "");
  if (kind == "train") return train(in, arguments.at(3), std::stoi(arguments.at(4)));
  TORCH_CHECK_VALUE(kind == "save", "lora_runner: '", kind, "' is none of compute, train and save");
  return save(in, arguments.at(3));
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    mantissa::save_safetensors(arguments.at(2), mantissa::run(arguments));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", mantissa::message_of(error).c_str());
    return 2;
  }
}
