#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/data/batch.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace mantissa {

class MeanMetrics;

/// What Task::configure_optimizers() returns: an optimizer and, if wanted, a schedule of its learning rate.
struct OptimizerConfig {
  enum class Interval { kEpoch, kStep };

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<torch::optim::LRScheduler> scheduler = nullptr;
  /// How often `scheduler` advances. A skipped step does not advance it.
  Interval interval = Interval::kEpoch;
};

/// What a Trainer trains: a model with its loss and its optimizer (Lightning: LightningModule).
///
/// Hooks are called in the order in which they stand here; those that do nothing by default may be left out.
/// Source:  spec 2.2, 2.3.
/// Example: examples/trainer.cpp.
class Task {
 public:
  virtual ~Task() = default;

  /// Makes the model if it was not made before, inside the precision's module_init_context().
  virtual void configure_model() {}
  /// The model: what is converted, moved, put into training or evaluation mode, and saved.
  virtual torch::nn::Module& module() = 0;
  /// Called once, after the model was converted and moved.
  virtual OptimizerConfig configure_optimizers() = 0;

  /// Forward and loss of one batch, inside the precision's forward context. Returns a 0-dim loss, or an
  /// undefined tensor to leave the batch out.
  virtual at::Tensor training_step(const Batch& batch, int64_t batch_index) = 0;
  /// Forward of one held-out batch, without gradients; log() what is wanted.
  virtual void validation_step(const Batch& /*batch*/, int64_t /*batch_index*/) {}

  virtual void on_before_zero_grad(torch::optim::Optimizer& /*optimizer*/) {}
  /// `loss` is scaled where the precision scales.
  virtual void on_before_backward(const at::Tensor& /*loss*/) {}
  /// Gradients are still scaled here.
  virtual void on_after_backward() {}
  /// Gradients are unscaled, except fp16 ones of a fused optimizer, which divides by the scale itself;
  /// clipping is yet to come.
  virtual void on_before_optimizer_step(torch::optim::Optimizer& /*optimizer*/) {}

 protected:
  /// Notes a number for the progress bar, the loggers and the result: its mean over the epoch, weighted by
  /// batch size. Only inside training_step() and validation_step().
  void log(const std::string& name, const at::Tensor& value);
  void log(const std::string& name, double value);

 private:
  friend class Trainer;
  MeanMetrics* metrics_ = nullptr;
  double batch_weight_ = 0;
};

}  // namespace mantissa
