// The optimizers of few bits, and Muon, in every place where the fused ones work: the scaler, clipping, accumulation, and
// checkpoints of the Trainer.
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>

#include <torch/torch.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/convnet.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/registry.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::eight_bit_optimizers_test {
namespace {

using Clip = std::function<void(GradScaler&, torch::optim::Optimizer&)>;

const std::map<std::string, Clip> kClips = {
    {"none", [](GradScaler&, torch::optim::Optimizer&) {}},
    {"norm", [](GradScaler& scaler, torch::optim::Optimizer& o) { scaler.clip_grad_norm_(o, 1.0); }},
    {"value", [](GradScaler& scaler, torch::optim::Optimizer& o) { scaler.clip_grad_value_(o, 0.5); }}};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const OptimizerEntry& entry : optimizers())
    if (entry.takes("min_8bit_size") || entry.name == "muon") all.push_back(entry.name);
  return all;
}

TEST(EightBitOptimizers, AnIterationReadsNoValueOnTheHost) {
  for (const std::string& name : names()) {
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      for (const auto& [kind, clip] : kClips) {
        const at::Tensor weight = torch::ones({384}, dtype).set_requires_grad(true),
                         matrix = torch::eye(16, dtype).set_requires_grad(true);
        const auto optimizer = make_optimizer(
            name, {weight, matrix}, settings_taken(find_optimizer(name), {.lr = 0.01, .min_8bit_size = 1}));
        GradScaler scaler(at::kCPU, {.hysteresis_steps = 2});
        for (const float gradient : {1024.0F, HUGE_VALF, 1024.0F, NAN}) {
          const HostReads reads;
          scaler.scale(torch::ones({}));
          weight.mutable_grad() = torch::full_like(weight, gradient).detach();
          matrix.mutable_grad() = torch::full_like(matrix, gradient).detach();
          clip(scaler, *optimizer);
          scaler.step(*optimizer);
          scaler.update();
          EXPECT_EQ(reads.count(), 0) << name << " " << dtype << " " << kind << " " << gradient;
        }
        EXPECT_LT(weight[0].item<float>(), 1) << name;
        EXPECT_LT(matrix[0][0].item<float>(), 1) << name;
        EXPECT_TRUE(weight.isfinite().all().item<bool>()) << name;
        EXPECT_TRUE(matrix.isfinite().all().item<bool>()) << name;
      }
    }
  }
}

/// Trains a network of which most weights have 8-bit states.
FitResult train(const std::string& optimizer, const OptimizerSettings& settings, const std::string& precision,
                const std::string& algorithm) {
  torch::manual_seed(1);
  Convnet model(ConvnetOptions{.height = 8, .width = 8, .classes = 10});
  ClassificationTask task(
      model.ptr(), [&](const at::Tensor& x) { return model->forward(x); },
      [&](torch::nn::Module& module) {
        return OptimizerConfig{make_optimizer(optimizer, module.parameters(), settings)};
      });
  DataLoader loader(load_digits(), {.batch_size = 32, .shuffle = true, .num_samples = 960});
  Trainer trainer({.precision = precision,
                   .device = "cpu",
                   .max_epochs = 2,
                   .accumulate_grad_batches = 2,
                   .gradient_clip_val = 0.1,
                   .gradient_clip_algorithm = algorithm});
  return trainer.fit(task, loader);
}

TEST(EightBitOptimizers, TrainLikeThe32BitOneWithClippingAndAccumulation) {
  for (const std::string precision : {"32-true", "16-mixed", "bf16-mixed", "bf16-true", "O2"}) {
    for (const std::string algorithm : {"norm", "value"}) {
      const bool rounds = precision == "bf16-true";
      const FitResult wide =
          train("fused-adamw", {.lr = 2e-3, .stochastic_rounding = rounds}, precision, algorithm);
      const FitResult four_bit =
          train("adamw4bit", {.lr = 2e-3, .min_8bit_size = 256, .stochastic_rounding = rounds}, precision,
                algorithm);
      // The smallest value of a 4-bit second moment is a sixteenth of its block's largest, so the first steps of
      // most weights are shorter: the loss falls by three quarters of what it falls with 32 bits.
      EXPECT_LT(four_bit.metrics.at("train_loss"), 1.9) << precision << algorithm;  // from 2.3
      EXPECT_NEAR(four_bit.metrics.at("train_loss"), wide.metrics.at("train_loss"), 0.35)
          << precision << algorithm;
      const FitResult narrow =
          train("adamw8bit", {.lr = 2e-3, .min_8bit_size = 256, .stochastic_rounding = rounds}, precision,
                algorithm);
      EXPECT_EQ(narrow.skipped_steps, wide.skipped_steps) << precision;
      EXPECT_LT(narrow.metrics.at("train_loss"), 1.7) << precision;  // from 2.3
      EXPECT_NEAR(narrow.metrics.at("train_loss"), wide.metrics.at("train_loss"), 0.1)
          << precision << algorithm;
    }
  }
}

class Net : public Task {
 public:
  explicit Net(std::string optimizer) : optimizer_(std::move(optimizer)) {}
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    const OptimizerSettings settings = {.lr = 1e-2, .min_8bit_size = 100, .stochastic_rounding = true};
    std::shared_ptr<torch::optim::Optimizer> optimizer =
        make_optimizer(optimizer_, *net, settings_taken(find_optimizer(optimizer_), settings));
    dynamic_cast<LowBitOptimizer&>(*optimizer).override_config(*net, "2.weight", {.optim_bits = 32});
    auto schedule = std::make_shared<WarmupCosineLR>(
        *optimizer, WarmupCosineOptions{.warmup_steps = 2, .total_steps = 40});
    return {{optimizer, schedule, OptimizerConfig::Interval::kStep}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    return (net->forward(batch.data) - batch.target.to(batch.data.dtype())).square().mean();
  }
  torch::nn::Sequential net{torch::nn::Linear(6, 64), torch::nn::Dropout(0.5), torch::nn::Linear(64, 8),
                            torch::nn::Linear(8, 1)};

 private:
  std::string optimizer_;
};

class EightBitCheckpoints : public InFolder {
 protected:
  /// Trains to `max_epochs`; returns the weights.
  std::vector<at::Tensor> run(const std::string& optimizer, const std::string& precision, int64_t max_epochs,
                              const std::filesystem::path& from = {}) {
    torch::manual_seed(7);
    const at::Tensor x = torch::randn({22, 6});
    const auto data = std::make_shared<TensorDataset>(x, x.sum(1, /*keepdim=*/true));
    Net task(optimizer);
    if (!from.empty()) torch::manual_seed(99);  // a resumed run must use the checkpoint's states
    DataLoader loader(data, {.batch_size = 4, .shuffle = true, .seed = 5});
    auto checkpoints = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / std::to_string(++runs_), .save_top_k = -1});
    Trainer trainer({.precision = precision,
                     .device = "cpu",
                     .max_epochs = max_epochs,
                     .accumulate_grad_batches = 2,
                     .gradient_clip_val = 1,
                     .callbacks = {checkpoints}});
    trainer.fit(task, loader, /*val=*/nullptr, from);
    last_ = checkpoints->last_model_path();
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : task.net->parameters()) weights.push_back(parameter.detach().clone());
    return weights;
  }

  std::filesystem::path last_;
  int runs_ = 0;
};

TEST_F(EightBitCheckpoints, Q49_ResumeBitForBit) {
  for (const std::string& name : names()) {
    for (const std::string precision : {"32-true", "bf16-true", "16-mixed", "O2"}) {
      const auto straight = run(name, precision, 4);
      run(name, precision, 2);
      const auto resumed = run(name, precision, 4, last_);
      for (size_t i = 0; i < straight.size(); ++i)
        EXPECT_TRUE(at::equal(resumed[i], straight[i])) << name << " " << precision << " " << i;
    }
  }
}

}  // namespace
}  // namespace mantissa::eight_bit_optimizers_test
