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
  /// `scheduler` advances every `frequency` epochs or steps.
  int64_t frequency = 1;
  /// Lowers the rate when the metric named `monitor` no longer improves; checked every `frequency` epochs.
  std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> plateau = nullptr;
  std::string monitor = "val_loss";
};

/// An optimizer of a running Trainer, for a task with manual optimization (Lightning: LightningOptimizer).
class TaskOptimizer {
 public:
  /// Steps in the run's precision: unscales gradients that are scaled, and skips the step if they overflowed.
  /// The loss scale is updated once per batch, after every optimizer that shares it has stepped.
  /// `closure` itself clears the gradients, computes the loss and calls manual_backward().
  StepResult step(const std::function<at::Tensor()>& closure = nullptr);
  void zero_grad();
  /// Clips the gradients that the step will use. Unscales them first if they are scaled.
  /// Returns the norm before clipping; undefined when clipping by value.
  at::Tensor clip_gradients(double clip_val, GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm);
  torch::optim::Optimizer& optimizer() const { return *config_->optimizer; }
  /// Null if the optimizer has no schedule. The task advances it.
  torch::optim::LRScheduler* scheduler() const { return config_->scheduler.get(); }

 private:
  friend class FitRun;
  TaskOptimizer(FitRun& run, OptimizerConfig& config) : run_(&run), config_(&config) {}
  FitRun* run_;
  OptimizerConfig* config_;
};

/// A model with its loss and its optimizers, for a Trainer to train (Lightning: LightningModule).
///
/// Hooks are called in the order in which they are declared here. Hooks that do nothing by default need no
/// override.
/// Example: examples/trainer.cpp.
class Task {
 public:
  virtual ~Task() = default;

  /// Makes the model if it does not exist yet, inside the precision's module_init_context(). validate(),
  /// test() and predict() call it too.
  virtual void configure_model() {}
  /// The model that the Trainer converts, moves, switches between training and evaluation mode, and saves.
  virtual torch::nn::Module& module() = 0;
  /// Called once per fit, after the model was converted and moved. Returns {{optimizer}} or {{optimizer,
  /// schedule}}, and several only without automatic_optimization().
  virtual std::vector<OptimizerConfig> configure_optimizers() = 0;
  /// false: training_step() itself calls manual_backward() and steps its optimizers().
  virtual bool automatic_optimization() const { return true; }

  /// Computes the forward pass and the loss of one batch, inside the precision's forward context. Returns a
  /// 0-dim loss, or an undefined tensor to leave the batch out. Without automatic_optimization() the returned
  /// loss is only displayed.
  virtual at::Tensor training_step(const Batch& batch, int64_t batch_index) = 0;
  /// Computes the forward pass of one held-out batch, without gradients. Call log() for its metrics.
  virtual void validation_step(const Batch& /*batch*/, int64_t /*batch_index*/) {}
  /// The same for Trainer::test(); by default it calls validation_step().
  virtual void test_step(const Batch& batch, int64_t batch_index) { validation_step(batch, batch_index); }
  /// Returns the prediction for one batch; Trainer::predict() collects them.
  /// Errors: c10::NotImplementedError if not overridden.
  virtual c10::IValue predict_step(const Batch& batch, int64_t batch_index);

  virtual void on_before_zero_grad(torch::optim::Optimizer& /*optimizer*/) {}
  /// `loss` is scaled where the precision scales.
  virtual void on_before_backward(const at::Tensor& /*loss*/) {}
  /// Gradients are still scaled here.
  virtual void on_after_backward() {}
  /// Gradients are unscaled and not clipped yet. The fp16 gradients of a fused optimizer are still scaled,
  /// because the optimizer itself divides by the scale.
  virtual void on_before_optimizer_step(torch::optim::Optimizer& /*optimizer*/) {}

 protected:
  /// Logs a number for the progress bar, the loggers and the result, as its mean over the epoch weighted by
  /// batch size. Call it only inside training_step(), validation_step() and test_step().
  void log(const std::string& name, const at::Tensor& value);
  void log(const std::string& name, double value);

  /// The optimizer at `index` of the running fit, in configure_optimizers()'s order.
  /// Errors: c10::Error outside a fit; c10::IndexError if there is no such optimizer.
  TaskOptimizer& optimizers(size_t index = 0) const;
  /// Scales the loss if the precision does so, and calls its backward() as outside the forward context. For training_step() without automatic_optimization().
  void manual_backward(const at::Tensor& loss) const;
  /// While the returned scope is held, only the parameters of `optimizer` require gradients, among the
  /// parameters of this task's optimizers (Lightning: toggle_optimizer).
  [[nodiscard]] Scope toggle_optimizer(const TaskOptimizer& optimizer) const;
  /// The Trainer that runs this task.
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
