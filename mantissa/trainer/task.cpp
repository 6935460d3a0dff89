#include "mantissa/trainer/task.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "mantissa/trainer/loop/fit_run_internal.h"

namespace mantissa {

c10::IValue Task::predict_step(const Batch& /*batch*/, int64_t /*batch_index*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "predict: this task has no predict_step(); override it and return ",
                              "the prediction for a batch");
}

Trainer& Task::trainer() const {
  TORCH_CHECK(run_, "Task: no Trainer runs this task now; call this inside one of its hooks");
  return run_->trainer();
}

FitRun& Task::fit_run(const char* function) const {
  trainer();  // throws if no run is active
  FitRun* const run = run_->as_fit();
  TORCH_CHECK(run, function, ": this run is not a fit; call it inside training_step()");
  return *run;
}

template <typename Value>
void Task::add_to_log(const std::string& name, const Value& value) {
  TORCH_CHECK(run_, "log('", name,
              "'): call it inside training_step(), validation_step() or test_step() of a running Trainer");
  run_->log(name, value);
}

void Task::log(const std::string& name, const at::Tensor& value) { add_to_log(name, value); }

void Task::log(const std::string& name, double value) { add_to_log(name, value); }

TaskOptimizer& Task::optimizers(size_t index) const {
  std::vector<TaskOptimizer>& all = fit_run("optimizers").task_optimizers();
  TORCH_CHECK_INDEX(index < all.size(), "optimizers(", index, "): configure_optimizers() returned ",
                    all.size(), "; number them from 0");
  return all[index];
}

void Task::manual_backward(const at::Tensor& loss) const { fit_run("manual_backward").manual_backward(loss); }

Scope Task::toggle_optimizer(const TaskOptimizer& optimizer) const {
  // Gradients belong to the model's parameters. An optimizer with master weights steps other tensors.
  const auto parameters_of = [&](const torch::optim::Optimizer& of) {
    std::vector<at::Tensor> parameters = main_params(of);
    for (at::Tensor& parameter : parameters) parameter = trainer().precision().model_parameter(parameter);
    return parameters;
  };
  std::unordered_set<const at::TensorImpl*> kept;
  for (const at::Tensor& parameter : parameters_of(optimizer.optimizer()))
    kept.insert(parameter.unsafeGetTensorImpl());
  /// Turns gradients off, and in its destructor on again.
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
    for (const at::Tensor& parameter : parameters_of(*config.optimizer))
      if (parameter.requires_grad() && kept.insert(parameter.unsafeGetTensorImpl()).second)
        others.push_back(parameter);
  }
  return std::make_shared<Frozen>(std::move(others));
}

StepResult TaskOptimizer::step(const std::function<at::Tensor()>& closure) {
  return run_->manual_step(*config_, closure);
}

void TaskOptimizer::zero_grad() { run_->clear_gradients(optimizer()); }

at::Tensor TaskOptimizer::clip_gradients(double clip_val, GradientClipAlgorithm algorithm) {
  return run_->trainer().precision().clip_gradients(optimizer(), clip_val, algorithm);
}

}  // namespace mantissa
