#pragma once

// For the tests of this room: a small model, and adapters with values that change something.

#include <gmock/gmock.h>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa {

/// Two blocks of two linear layers, and a head.
struct LoraNetImpl : torch::nn::Module {
  struct BlockImpl : torch::nn::Module {
    BlockImpl() {
      register_module("up", up);
      register_module("down", down);
    }
    at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
    torch::nn::Linear up{6, 10}, down{10, 6};
  };
  LoraNetImpl() {
    register_module("blocks", blocks);
    for (int i = 0; i < 2; ++i) blocks->push_back(std::make_shared<BlockImpl>());
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = std::dynamic_pointer_cast<BlockImpl>(block)->forward(x);
    return head(norm(x));
  }
  torch::nn::LinearImpl& up(int block) {
    return *std::dynamic_pointer_cast<BlockImpl>(blocks[static_cast<size_t>(block)])->up;
  }

  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({6})};
  torch::nn::Linear head{6, 3};
};
TORCH_MODULE(LoraNet);

/// Gives all parameters of an adapter values from a normal distribution: B starts as zeros otherwise.
inline void randomize(torch::nn::Module& model, const std::string& adapter = "default") {
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    if (item.key().find(".lora_") == std::string::npos ||
        item.key().find("." + adapter + ".") == std::string::npos)
      continue;
    if (item.key().find("magnitude") != std::string::npos) {
      item.value().mul_(1 + 0.2 * torch::rand_like(item.value()));
    } else {
      item.value().normal_(0, 0.3);
    }
  }
}

inline at::Tensor parameter(const torch::nn::Module& model, const std::string& name) {
  const auto all = model.named_parameters();
  const at::Tensor* const found = all.find(name);
  EXPECT_TRUE(found) << name;
  return found ? *found : at::Tensor();
}

/// Packs the weights of the net's blocks.
inline void pack_blocks(LoraNet& net) {
  for (const auto& item : net->named_parameters())
    if (item.key().starts_with("blocks") && item.key().ends_with("weight"))
      replace_weight(item.value(), pack(item.value()));
}

}  // namespace mantissa
