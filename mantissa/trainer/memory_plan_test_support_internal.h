// Support for the tests of memory plans: a task whose tensors are easy to count, and a batch for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/task.h"

namespace mantissa::memory_plan_test_support {

inline constexpr int64_t kSamples = 32, kIn = 8, kOut = 16, kWeights = kIn * kOut;

/// relu(x W): has one weight and one buffer, and the forward pass keeps only relu's result.
class OneLayer : public Task {
 public:
  explicit OneLayer(double momentum = 0) : momentum_(momentum) {
    net->register_buffer("seen", torch::zeros({3}));
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(net->parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(momentum_))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    return torch::relu(net->forward(batch.data)).sum();
  }

  torch::nn::Linear net{torch::nn::LinearOptions(kIn, kOut).bias(false)};

 private:
  double momentum_;
};

inline Batch some_batch() { return {torch::rand({kSamples, kIn}), torch::zeros({kSamples}, at::kLong), {}}; }

}  // namespace mantissa::memory_plan_test_support
