// Support for the tests of resuming: a task that draws random numbers, and a fixture that fits it.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::resume_test_support {

/// Draws random numbers in each step: the weight shows whether they were the right ones.
struct Draws : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t) override {
    calls += "f";
    log("x", batch.data.mean());
    if (throws_at == batch.data.item<float>()) throw std::runtime_error("training_step failed");
    if (raises == calls) std::raise(SIGTERM);
    return (net->weight * batch.data * torch::rand({})).sum();
  }
  void validation_step(const Batch& batch, int64_t) override {
    calls += "v";
    if (validation_draws) torch::rand({});
    if (validation_fails) throw std::runtime_error("validation_step failed");
    if (raises == calls) std::raise(SIGTERM);
    log("m", batch.data.mean());
  }
  bool validation_fails = false, validation_draws = false;
  std::string calls, raises;
};

class Resume : public InFolder {
 protected:
  /// Fits batches 1 to 4 with two validation batches, and saves checkpoints in the folder `name`.
  FitResult fit(Draws& task, const std::string& name, TrainerOptions options, const std::string& from = "") {
    ListLoader train = loader_of({1, 2, 3, 4}), val = loader_of({1, 1});
    options.device = "cpu";
    options.num_sanity_val_steps = 0;
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / name,
                               .filename = "{epoch}-{step}",
                               .every_n_train_steps = every_n_train_steps}));
    return Trainer(std::move(options)).fit(task, train, &val, from.empty() ? "" : folder_ / from);
  }
  std::string warnings_of(const std::function<void()>& run) {
    testing::internal::CaptureStderr();
    run();
    return testing::internal::GetCapturedStderr();
  }
  double whole(TrainerOptions options) {
    Draws task;
    torch::manual_seed(3);  // after the constructor, which draws the first weights
    fit(task, "whole", std::move(options));
    return task.weight();
  }

  int64_t every_n_train_steps = 0;
};

}  // namespace mantissa::resume_test_support
