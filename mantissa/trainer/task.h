#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "mantissa/data/batch.h"
#include "mantissa/precision/precision.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace mantissa {

class FitRun;
class Trainer;
class TrainerRun;

/// One optimizer of a task and, if wanted, a schedule of its learning rate.
struct OptimizerConfig {
  enum class Interval { kEpoch, kStep };

  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<torch::optim::LRScheduler> scheduler = nullptr;
  /// How often `scheduler` advances. A skipped step does not advance it.
  Interval interval = Interval::kEpoch;
  /// It advances every so many epochs or steps.
  int64_t frequency = 1;
  /// Lowers the rate when the metric named `monitor` no longer improves; asked every `frequency` epochs.
  std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau = nullptr;
  std::string monitor = "val_loss";
};

/// An optimizer of a running Trainer, for a task that steps by itself (Lightning: LightningOptimizer).
class TaskOptimizer {
 public:
  /// Steps in the run's precision: unscales gradients that are scaled, skips what overflowed, and moves the
  /// scale once a batch, when every optimizer that shares it has stepped.
  /// `closure` clears gradients, computes the loss and calls manual_backward() itself.
  StepResult step(const std::function<at::Tensor()>& closure = nullptr);
  void zero_grad();
  /// Clips what the step will use. Gradients that are scaled are unscaled before.
  /// Returns the norm before clipping, undefined when clipping by value.
  at::Tensor clip_gradients(double clip_val, GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm);
  torch::optim::Optimizer& optimizer() const { return *config_->optimizer; }
  /// Null without one. Advancing it is the task's.
  torch::optim::LRScheduler* scheduler() const { return config_->scheduler.get(); }

 private:
  friend class FitRun;
  TaskOptimizer(FitRun& run, OptimizerConfig& config) : run_(&run), config_(&config) {}
  FitRun* run_;
  OptimizerConfig* config_;
};

/// What a Trainer trains: a model with its loss and its optimizer (Lightning: LightningModule).
///
/// Hooks are called in the order in which they stand here; those that do nothing by default may be left out.
/// Example: examples/trainer.cpp.
class Task {
 public:
  virtual ~Task() = default;

  /// Makes the model if it was not made before, inside the precision's module_init_context(). Also before
  /// validate(), test() and predict().
  virtual void configure_model() {}
  /// The model: what is converted, moved, put into training or evaluation mode, and saved.
  virtual torch::nn::Module& module() = 0;
  /// Called once a fit, after the model was converted and moved: {{optimizer}}, {{optimizer, schedule}}.
  /// Several only without automatic_optimization().
  virtual std::vector<OptimizerConfig> configure_optimizers() = 0;
  /// false: training_step() itself calls manual_backward() and steps its optimizers().
  virtual bool automatic_optimization() const { return true; }

  /// Forward and loss of one batch, inside the precision's forward context. Returns a 0-dim loss, or an
  /// undefined tensor to leave the batch out; without automatic_optimization() what it returns is only shown.
  virtual at::Tensor training_step(const Batch& batch, int64_t batch_index) = 0;
  /// Forward of one held-out batch, without gradients; log() what is wanted.
  virtual void validation_step(const Batch& /*batch*/, int64_t /*batch_index*/) {}
  /// The same for Trainer::test(); by default what validation does.
  virtual void test_step(const Batch& batch, int64_t batch_index) { validation_step(batch, batch_index); }
  /// What Trainer::predict() returns of one batch.
  /// Errors: c10::NotImplementedError where it is not overridden.
  virtual c10::IValue predict_step(const Batch& batch, int64_t batch_index);

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
  /// batch size. Only inside training_step(), validation_step() and test_step().
  void log(const std::string& name, const at::Tensor& value);
  void log(const std::string& name, double value);

  /// Of the running fit, in configure_optimizers()'s order.
  /// Errors: c10::Error outside a fit; c10::IndexError for one that there is not.
  TaskOptimizer& optimizers(size_t index = 0) const;
  /// Scales the loss where the precision does and calls its backward(), outside the forward context's
  /// autocast; for training_step() without automatic_optimization().
  void manual_backward(const at::Tensor& loss) const;
  /// While it is held, only the parameters of `optimizer` want gradients, of those that any optimizer of this
  /// task has (Lightning: toggle_optimizer).
  [[nodiscard]] Scope toggle_optimizer(const TaskOptimizer& optimizer) const;
  /// Of the running Trainer.
  /// Errors: c10::Error outside a run.
  Trainer& trainer() const;

 private:
  friend class TrainerRun;
  template <typename Value>
  void add_to_log(const std::string& name, const Value& value);
  FitRun& fit_run(const char* function) const;

  TrainerRun* run_ = nullptr;  ///< null between runs
};

}  // namespace mantissa
