#pragma once

// For the tests of strategies: a run of a model with one weight.

#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::strategy_test {

struct Outcome {
  FitResult result;
  double weight = 0, scale = 0;
  int exchanges = 0;
};

/// `val`: validation batches; none if empty.
inline Outcome train(OneWeight& task, TrainerOptions options, std::vector<float> values,
                     std::vector<float> val_values = {}) {
  ListLoader loader = loader_of(std::move(values)), val = loader_of(std::move(val_values));
  options.device = "cpu";
  options.num_sanity_val_steps = 0;
  Trainer trainer(std::move(options));
  Outcome outcome;
  outcome.result = trainer.fit(task, loader, val.size() > 0 ? &val : nullptr);
  outcome.weight = task.weight();
  if (const at::Tensor scale = trainer.precision().loss_scale(); scale.defined())
    outcome.scale = scale.item<double>();
  return outcome;
}

inline Outcome train(TrainerOptions options, std::vector<float> values) {
  OneWeight task;
  return train(task, std::move(options), std::move(values));
}

}  // namespace mantissa::strategy_test
