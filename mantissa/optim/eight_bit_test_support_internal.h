#pragma once

// For tests of what all 8-bit optimizers share.

#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/optim/optimizers_8bit.h"

namespace mantissa::test8bit {

using Made = std::unique_ptr<LowBitOptimizer>;

/// An 8-bit optimizer.
struct Kind {
  std::string name;
  std::function<Made(std::vector<at::Tensor>, const LowBitOptions&)> make;
};
inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <typename Optimizer, typename Options>
Kind kind(const std::string& name, const Options& options) {
  return {name, [options](std::vector<at::Tensor> parameters, const LowBitOptions& all) {
            return std::make_unique<Optimizer>(std::move(parameters), options, all);
          }};
}

/// Runs a test for each of all_8bit_optimizers().
class EightBit : public testing::TestWithParam<Kind> {
 protected:
  static Made make(std::vector<at::Tensor> parameters, const LowBitOptions& options = {}) {
    return GetParam().make(std::move(parameters), options);
  }
};
inline std::vector<Kind> all_8bit_optimizers() {
  return {kind<Adam8bit>("Adam8bit", AdamOptions(0.01)),
          kind<AdamW8bit>("AdamW8bit", AdamWOptions(0.01)),
          kind<Lion8bit>("Lion8bit", LionOptions(0.01)),
          kind<SGD8bit>("SGD8bit", SGDOptions(0.01).momentum(0.9)),
          kind<RMSprop8bit>("RMSprop8bit", torch::optim::RMSpropOptions(0.01)),
          kind<Adagrad8bit>("Adagrad8bit", AdagradOptions(0.01))};
}

inline at::Tensor weight(int64_t count) {
  torch::manual_seed(6);
  return at::randn({count}).set_requires_grad(true);
}

}  // namespace mantissa::test8bit
