#pragma once

#include <memory>

#include <torch/torch.h>

#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/fp8_training.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::fp8_training_test {

using fp8::wide;

inline std::shared_ptr<Fp8LinearState> mark(const torch::nn::Linear& layer,
                                            const Fp8Recipe& recipe = DelayedScaling{.amax_history_len = 4}) {
  auto state = std::make_shared<Fp8LinearState>(recipe);
  mark_weight(layer->weight, std::make_shared<Fp8TrainingRule>(state));
  return state;
}

/// A step: forward in a region, backward outside of it.
inline at::Tensor step(torch::nn::Linear& layer, const at::Tensor& x) {
  at::Tensor y;
  {
    const Fp8Autocast region;
    y = layer(x);
  }
  y.square().sum().backward();
  return y.detach();
}

inline StateDict saved(const Fp8LinearState& state) { return snapshot(state.state_dict()); }

}  // namespace mantissa::fp8_training_test
