#pragma once

// The models and data that the programs of this folder train.

#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

#include "mantissa/models/gpt.h"
#include "mantissa/models/resnet.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/registry.h"

namespace mantissa {

struct Data {
  at::Tensor batch, targets;
};

/// A model that is trained on one batch by hand, as the Trainer does it.
class Training {
 public:
  Training(std::unique_ptr<Precision> precision, std::shared_ptr<TensorModule> net, Data data)
      : precision_(std::move(precision)), net_(std::move(net)), data_(std::move(data)) {
    precision_->convert_module(*net_);
    optimizer_ = std::make_unique<FusedAdamW>(net_->parameters(), AdamWOptions(1e-3));
    precision_->setup_optimizer(*optimizer_);
  }

  double step() {
    at::Tensor loss;
    optimizer_->zero_grad();
    {
      const Scope forward = precision_->forward_context();
      const at::Tensor y = net_->forward(precision_->convert_input(data_.batch));
      loss = at::cross_entropy_loss(y.reshape({data_.targets.numel(), -1}), data_.targets);
    }
    precision_->backward(loss);
    precision_->unscale_gradients(*optimizer_);
    if (!precision_->optimizer_step(*optimizer_).skipped()) ++steps_;
    return loss.item<double>();
  }

  /// Returns the loss after a number of steps. The steps that search for the loss scale are skipped and do
  /// not count.
  double loss_after(int64_t steps) {
    double loss = 0;
    while (steps_ < steps) loss = step();
    return loss;
  }

 private:
  std::unique_ptr<Precision> precision_;
  std::shared_ptr<TensorModule> net_;
  Data data_;
  std::unique_ptr<FusedAdamW> optimizer_;
  int64_t steps_ = 0;
};

struct Case {
  std::string name;
  std::shared_ptr<TensorModule> (*make)();
  Data (*data)();
};

inline std::shared_ptr<TensorModule> gpt(int64_t width, int64_t layers = 4) {
  GptOptions options;
  options.layers = layers;
  options.width = width;
  options.heads = width / 64;
  return std::make_shared<GptImpl>(options);
}

inline Data tokens() {
  return {at::randint(256, {4, 128}, at::kLong), at::randint(256, {int64_t{4} * 128}, at::kLong)};
}

inline std::shared_ptr<TensorModule> resnet() {
  ResnetOptions options;
  options.channels = 3;
  options.classes = 10;
  return std::make_shared<ResnetImpl>(options);
}

inline Data images() { return {at::rand({32, 3, 32, 32}), at::randint(10, {32}, at::kLong)}; }

/// The model's weights keep their layout, because libtorch's convolution follows its input.
inline Data images_channels_last() {
  Data data = images();
  data.batch = data.batch.contiguous(at::MemoryFormat::ChannelsLast);
  return data;
}

inline const std::vector<Case>& cases() {
  static const std::vector<Case> cases = {{"gpt-256", [] { return gpt(256); }, tokens},
                                          {"gpt-768", [] { return gpt(768); }, tokens},
                                          {"resnet-tiny", resnet, images},
                                          {"resnet-tiny-channels-last", resnet, images_channels_last}};
  return cases;
}

}  // namespace mantissa
