#pragma once

#include <functional>
#include <memory>
#include <string>

#include "mantissa/optim/registry.h"
#include "mantissa/trainer/task.h"

namespace mantissa {

/// Trains any model that maps `batch.data` to logits, with cross-entropy against integer `batch.target`:
/// images to labels, tokens to next tokens. Validation logs `val_loss` and `val_accuracy`, and a test logs
/// `test_loss` and `test_accuracy`. A prediction is the logits.
///
/// Shapes:   logits [..., classes], target [...]; every position has the same weight.
/// Units:    losses are means in nats.
/// Numerics: the loss is computed in float32 when the logits are 16-bit.
/// Errors:   c10::ValueError when logits and targets do not fit.
class ClassificationTask : public Task {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  using MakeOptimizer = std::function<OptimizerConfig(torch::nn::Module&)>;

  ClassificationTask(std::shared_ptr<torch::nn::Module> module, Forward forward,
                     MakeOptimizer make_optimizer);
  /// The same for a module holder, such as Gpt, whose forward() maps `batch.data` to logits. The optimizer is that of
  /// make_optimizer(optimizer, module, settings).
  ///
  ///     ClassificationTask task(model, "adamw", {.lr = 3e-3});
  ///
  /// Errors: c10::ValueError for an unknown name; the others of make_optimizer() when a fit begins.
  template <typename Holder>
  ClassificationTask(const Holder& model, const std::string& optimizer,
                     const OptimizerSettings& settings = {})
      : ClassificationTask(
            model.ptr(), [net = model](const at::Tensor& x) mutable { return net->forward(x); },
            optimizer_called(optimizer, settings)) {}

  torch::nn::Module& module() override { return *module_; }
  std::vector<OptimizerConfig> configure_optimizers() override { return {make_optimizer_(*module_)}; }
  at::Tensor training_step(const Batch& batch, int64_t batch_index) override;
  void validation_step(const Batch& batch, int64_t batch_index) override;
  void test_step(const Batch& batch, int64_t batch_index) override;
  c10::IValue predict_step(const Batch& batch, int64_t batch_index) override;

 private:
  static MakeOptimizer optimizer_called(const std::string& name, const OptimizerSettings& settings);
  void log_scores(const char* prefix, const Batch& batch);

  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
  MakeOptimizer make_optimizer_;
};

}  // namespace mantissa
