#pragma once

// A small transformer and a small convnet; a test can plant a fault in their forward pass.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/precision/registry.h"
#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_test {

constexpr float kInf = std::numeric_limits<float>::infinity();

using Fault = std::function<at::Tensor(const at::Tensor&)>;

/// A network that passes its values through a fault at named places.
struct Faulty : torch::nn::Module {
  at::Tensor at_place(const std::string& place, const at::Tensor& x) const {
    const auto found = faults.find(place);
    return found == faults.end() ? x : found->second(x);
  }
  virtual at::Tensor loss(const Precision& precision) = 0;
  std::map<std::string, Fault> faults;
};

/// One head and one block, with explicit attention and a mask of -inf.
struct Transformer final : Faulty {
  Transformer() {
    torch::manual_seed(3);
    embedding = register_module("embedding", torch::nn::Embedding(16, 8));
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    qkv = register_module("qkv", torch::nn::Linear(8, 24));
    projection = register_module("projection", torch::nn::Linear(8, 8));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    mlp = register_module("mlp", torch::nn::Sequential());
    mlp->push_back("fc1", torch::nn::Linear(8, 32));
    mlp->push_back("gelu", torch::nn::GELU());
    mlp->push_back("fc2", torch::nn::Linear(32, 8));
    head = register_module("head", torch::nn::Linear(8, 16));
    tokens = torch::randint(0, 12, {2, 6});
    mask = register_buffer("mask", torch::full({6, 6}, -kInf).triu(1));
  }

  at::Tensor logits(const at::Tensor& from) {
    at::Tensor x = at_place("embedding", embedding(from));
    const std::vector<at::Tensor> parts = at_place("qkv", qkv(at_place("norm1", norm1(x)))).split(8, -1);
    at::Tensor scores = torch::bmm(parts[0], parts[1].transpose(1, 2)) / std::sqrt(8.0);
    scores = at_place("scores", scores) + mask.to(scores.scalar_type());
    const at::Tensor weights = at_place("softmax", torch::softmax(scores, -1));
    x = at_place("residual",
                 x + at_place("projection", projection(at_place("value", torch::bmm(weights, parts[2])))));
    at::Tensor y = at_place("fc1", mlp[0]->as<torch::nn::Linear>()->forward(at_place("norm2", norm2(x))));
    y = at_place("gelu", mlp[1]->as<torch::nn::GELU>()->forward(y));
    x = x + at_place("mlp", mlp[2]->as<torch::nn::Linear>()->forward(y));
    return at_place("head", head(x));
  }
  at::Tensor loss(const Precision& precision) override {
    const Scope scope = precision.forward_context();
    const at::Tensor y = logits(tokens).to(at::kFloat);
    return at_place("loss", torch::nn::functional::cross_entropy(y.flatten(0, 1), tokens.flatten()));
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, projection{nullptr}, head{nullptr};
  torch::nn::Sequential mlp{nullptr};
  at::Tensor tokens, mask;
};

struct Convnet final : Faulty {
  Convnet() {
    torch::manual_seed(3);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    head = register_module("head", torch::nn::Linear(4 * 16, 5));
    images = torch::rand({3, 1, 8, 8});
  }
  at::Tensor loss(const Precision& precision) override {
    const Scope scope = precision.forward_context();
    at::Tensor x = at_place("conv", conv(at_place("images", precision.convert_input(images))));
    x = at_place("relu", torch::relu(at_place("norm", norm(x))));
    x = at_place("pool", torch::max_pool2d(x, 2));
    const at::Tensor y = at_place("head", head(x.flatten(1))).to(at::kFloat);
    return at_place("loss", torch::nn::functional::cross_entropy(y, torch::tensor({0, 1, 2}, y.device())));
  }

  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor images;
};

inline void set(const at::Tensor& parameter, const std::function<void(at::Tensor&)>& change) {
  const torch::NoGradGuard no_grad;
  at::Tensor values = parameter;
  change(values);
}

/// Traces `net` in a mode on the CPU. The loss is scaled as a scaler with `scale` would do it.
inline std::optional<NonFiniteOrigin> trace(Faulty& net, const std::string& mode = "32-true",
                                            double scale = 1) {
  const auto precision = make_precision(mode, at::kCPU);
  precision->convert_module(net);
  return trace_nonfinite(net, [&] { return net.loss(*precision) * torch::full({}, scale); });
}

}  // namespace mantissa::nonfinite_test
