// Without a loop: define a step, and the Trainer does the rest.

#include "mantissa/trainer/trainer.h"

#include <cstdio>

#include <ATen/Context.h>
#include <torch/nn/functional/loss.h>

#include "mantissa/core/threads_apart.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/digits.h"
#include "mantissa/models/convnet.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/trainer/callbacks/progress_bar.h"

struct Digits : mantissa::Task {
  torch::nn::Module& module() override { return *model; }
  std::vector<mantissa::OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<mantissa::SGD>(model->parameters(), mantissa::SGDOptions(0.05).momentum(0.9))}};
  }
  at::Tensor training_step(const mantissa::Batch& batch, int64_t) override {
    return torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
  }
  void validation_step(const mantissa::Batch& batch, int64_t) override {
    log("val_accuracy", model->forward(batch.data).argmax(1).eq(batch.target).to(at::kFloat).mean());
  }
  mantissa::Convnet model{mantissa::ConvnetOptions{.height = 8, .width = 8, .classes = 10}};
};

int main() {
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  at::manual_seed(1);
  auto [train, held_out] = mantissa::random_split(mantissa::load_digits(), 0.2, /*seed=*/1);
  mantissa::DataLoader train_loader(train, {.batch_size = 32, .shuffle = true});
  mantissa::DataLoader val_loader(held_out, {.batch_size = 256});
  Digits task;
  mantissa::Trainer trainer({.precision = "bf16-mixed",
                             .max_epochs = 5,
                             .gradient_clip_val = 1.0,
                             .callbacks = {std::make_shared<mantissa::ProgressBar>()}});
  const mantissa::FitResult result = trainer.fit(task, train_loader, &val_loader);
  std::printf("accuracy %.4f in %.1f s, %.2f ms a step\n", result.metrics.at("val_accuracy"), result.seconds,
              result.step_ms);
  return result.metrics.at("val_accuracy") > 0.9 ? 0 : 1;
}
