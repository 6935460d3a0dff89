#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "mantissa/optim/registry.h"
#include "mantissa/trainer/task.h"

namespace mantissa {

/// Trains any model that maps `batch.data` to logits, with cross-entropy against integer `batch.target`:
/// images to labels, tokens to next tokens. Validation logs `val_loss` and `val_accuracy`, and a test logs
/// `test_loss` and `test_accuracy`. A prediction is the logits.
///
/// Shapes:   logits [samples, ..., classes], target [samples, ...]; positions with the target -100 do not count, and all
///           others have the same weight. A floating-point target has the shares of the classes, [samples, ..., classes],
///           as mix_images() (data/images/mix.h) and label smoothing make them.
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

  /// For a model with a large vocabulary: losses are computed by chunked_cross_entropy(), which never has all logits in memory.
  /// The forward function then serves predictions only, and has to be output_layer(hidden_states(x)).
  ///
  /// Errors: c10::ValueError for a chunk below 1 and for missing functions.
  void set_chunked_loss(Forward hidden_states, Forward output_layer, int64_t chunk);

  torch::nn::Module& module() override { return *module_; }
  std::vector<OptimizerConfig> configure_optimizers() override { return {make_optimizer_(*module_)}; }
  at::Tensor training_step(const Batch& batch, int64_t batch_index) override;
  void validation_step(const Batch& batch, int64_t batch_index) override;
  void test_step(const Batch& batch, int64_t batch_index) override;
  c10::IValue predict_step(const Batch& batch, int64_t batch_index) override;

 private:
  static MakeOptimizer optimizer_called(const std::string& name, const OptimizerSettings& settings);
  /// The loss of a batch, and the share of positions that the largest logit predicts.
  std::pair<at::Tensor, at::Tensor> scores(const Batch& batch);
  void log_scores(const char* prefix, const Batch& batch);

  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
  MakeOptimizer make_optimizer_;
  Forward hidden_states_, output_layer_;  ///< null without set_chunked_loss()
  int64_t chunk_ = 0;
};

}  // namespace mantissa
