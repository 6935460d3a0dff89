#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/loop/checkpoint_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::kept_checkpoints {

/// Logs a given metric, epoch by epoch.
struct Logs : OneWeight {
  void validation_step(const Batch&, int64_t) override { log("m", values.at(validated++)); }
  std::vector<double> values;
  size_t validated = 0;
};

/// Fits one epoch for each of `metrics`.
inline FitResult fit(const ModelCheckpointOptions& options, std::vector<double> metrics,
                     std::shared_ptr<ModelCheckpoint>* made = nullptr) {
  Logs task;
  const auto epochs = static_cast<int64_t>(metrics.size());
  task.values = std::move(metrics);
  ListLoader train = loader_of({1, 2}), val = loader_of({1});
  auto checkpoints = std::make_shared<ModelCheckpoint>(options);
  if (made) *made = checkpoints;
  return Trainer(
             {.device = "cpu", .max_epochs = epochs, .num_sanity_val_steps = 0, .callbacks = {checkpoints}})
      .fit(task, train, &val);
}

/// Fits batches 1 and 2 in each epoch. Returns the error, or "".
inline std::string train(const ModelCheckpointOptions& options, TrainerOptions run, float throws_at = -kInf) {
  OneWeight task;
  task.throws_at = throws_at;
  ListLoader loader = loader_of({1, 2});
  run.device = "cpu";
  run.callbacks.push_back(std::make_shared<ModelCheckpoint>(options));
  return what_a_fit_throws([&] { Trainer(run).fit(task, loader); });
}

}  // namespace mantissa::kept_checkpoints
