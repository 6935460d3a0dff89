#include "mantissa/trainer/task.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "mantissa/trainer/trainer.h"

namespace mantissa {

c10::IValue Task::predict_step(const Batch& /*batch*/, int64_t /*batch_index*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "predict: this task has no predict_step(); override it, and return ",
                              "what is wanted of a batch");
}

Trainer& Task::trainer() const {
  TORCH_CHECK(trainer_, "Task: no Trainer runs this task now; call this inside one of its hooks");
  return *trainer_;
}

template <typename Value>
void Task::note(const std::string& name, const Value& value) {
  TORCH_CHECK(trainer_ && trainer_->logging_, "log('", name,
              "'): call it inside training_step(), validation_step() or test_step() of a running Trainer");
  check_metric_name("log", name);
  trainer_->logging_->add(name, value, trainer_->batch_weight_);
  if (trainer_->should_log_ && trainer_->logging_ == &trainer_->batch_metrics_)
    trainer_->note_step_value(name, value);
}

void Task::log(const std::string& name, const at::Tensor& value) { note(name, value); }

void Task::log(const std::string& name, double value) { note(name, value); }

TaskOptimizer& Task::optimizers(size_t index) const {
  std::vector<TaskOptimizer>& all = trainer().task_optimizers_;
  TORCH_CHECK_INDEX(index < all.size(), "optimizers(", index, "): configure_optimizers() returned ",
                    all.size(), "; number them from 0");
  return all[index];
}

void Task::manual_backward(const at::Tensor& loss) const { trainer().manual_backward(loss); }

Scope Task::toggle_optimizer(const TaskOptimizer& optimizer) const {
  std::unordered_set<const at::TensorImpl*> kept;
  for (const at::Tensor& parameter : main_params(optimizer.optimizer()))
    kept.insert(parameter.unsafeGetTensorImpl());
  /// Turns gradients off, and at its end on again for those that had them.
  struct Frozen {
    explicit Frozen(std::vector<at::Tensor> all) : parameters(std::move(all)) {
      for (at::Tensor& parameter : parameters) parameter.requires_grad_(false);
    }
    ~Frozen() {
      for (at::Tensor& parameter : parameters) parameter.requires_grad_(true);
    }
    Frozen(const Frozen&) = delete;
    Frozen& operator=(const Frozen&) = delete;
    std::vector<at::Tensor> parameters;
  };
  std::vector<at::Tensor> others;
  for (const OptimizerConfig& config : trainer().optimizers()) {
    for (const at::Tensor& parameter : main_params(*config.optimizer))
      if (parameter.requires_grad() && kept.insert(parameter.unsafeGetTensorImpl()).second)
        others.push_back(parameter);
  }
  return std::make_shared<Frozen>(std::move(others));
}

StepResult TaskOptimizer::step(const std::function<at::Tensor()>& closure) {
  return trainer_->manual_step(*config_, closure);
}

void TaskOptimizer::zero_grad() { trainer_->clear_gradients(optimizer()); }

at::Tensor TaskOptimizer::clip_gradients(double clip_val, GradientClipAlgorithm algorithm) {
  return trainer_->precision().clip_gradients(optimizer(), clip_val, algorithm);
}

}  // namespace mantissa
