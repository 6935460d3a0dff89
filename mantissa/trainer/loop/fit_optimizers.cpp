#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "mantissa/core/suggest.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/trainer/loop/fit_optimizers_internal.h"

namespace mantissa {
namespace {

void check_optimizers(const std::vector<OptimizerConfig>& configs, const TrainerOptions& options,
                      bool is_automatic) {
  TORCH_CHECK_VALUE(
      !configs.empty(),
      "fit: configure_optimizers() returned no optimizer; return one for the parameters that train");
  for (size_t i = 0; i < configs.size(); ++i) {
    TORCH_CHECK_VALUE(configs[i].optimizer, "fit: optimizer ", i,
                      " of configure_optimizers() is null; make an optimizer for it, or leave it out");
    TORCH_CHECK_VALUE(configs[i].frequency >= 1, "fit: optimizer ", i,
                      " of configure_optimizers() has a schedule with frequency ", configs[i].frequency,
                      "; give at least 1");
    for (size_t j = 0; j < i; ++j)
      TORCH_CHECK_VALUE(configs[i].optimizer != configs[j].optimizer, "fit: optimizers ", j, " and ", i,
                        " of configure_optimizers() are one; return it once");
  }
  TORCH_CHECK_VALUE(configs.size() == 1 || !is_automatic, "fit: configure_optimizers() returned ",
                    configs.size(),
                    " optimizers, and only the task knows which of them a loss is for: override "
                    "automatic_optimization() to return false, and step them in training_step()");
  TORCH_CHECK_TYPE(
      options.accumulate_grad_batches.is_always(1) || !has_line_search(*configs.front().optimizer),
      "fit: LBFGS evaluates the last batch of a window several times, which accumulate_grad_batches=",
      options.accumulate_grad_batches.to_string(), " cannot follow; set it to 1, or take another optimizer");
}

/// Checks that a parameter is left to train; a mode may have frozen all of them.
void check_anything_trains(const std::vector<OptimizerConfig>& configs, const Precision& precision) {
  if (!precision.traits().frozen_weights) return;
  for (const OptimizerConfig& config : configs)
    for (const at::Tensor& parameter : main_params(*config.optimizer))
      if (parameter.requires_grad()) return;
  TORCH_CHECK_VALUE(
      false, "fit: precision '", precision.name(),
      "' freezes the weights that it quantizes, and the optimizer has no other parameter to "
      "train; add LoRA adapters, name layers to train in ignore_modules, or choose another mode");
}

/// Whether all parameters with saved gradients train. The run's mode may have frozen some of them.
bool are_of_trained(const StateReader& gradients, const std::vector<at::Tensor>& parameters) {
  for (size_t number = 0; number < parameters.size(); ++number)
    if (gradients.find(std::to_string(number)) && !parameters[number].requires_grad()) return false;
  return true;
}

}  // namespace

void FitOptimizers::set_up(const TrainerOptions& options) {
  is_automatic_ = task_.automatic_optimization();
  std::vector<OptimizerConfig> configs = task_.configure_optimizers();
  check_optimizers(configs, options, is_automatic_);
  check_anything_trains(configs, precision_);
  configs_ = std::move(configs);
  for (const OptimizerConfig& config : configs_) precision_.setup_optimizer(*config.optimizer);
  waiting_.assign(configs_.size(), false);
  begin_epoch();
}

void FitOptimizers::begin_epoch() {
  epoch_steps_.assign(configs_.size(), 0);
  epoch_skips_.assign(configs_.size(), SkippedSteps());
}

void FitOptimizers::note_step(const OptimizerConfig& config, const StepResult& step) {
  const auto index = static_cast<size_t>(&config - configs_.data());
  waiting_[index] = false;
  ++epoch_steps_[index];
  epoch_skips_[index].add(step);
}

bool FitOptimizers::has_stepped(size_t optimizer) const {
  return epoch_steps_[optimizer] > epoch_skips_[optimizer].count();
}

void FitOptimizers::advance_step_schedules(const StepResult& step, const Progress& progress) {
  for (size_t i = 0; i < configs_.size(); ++i) {
    const OptimizerConfig& config = configs_[i];
    if (!config.scheduler || config.interval != OptimizerConfig::Interval::kStep || step.skipped()) continue;
    const int64_t steps = progress.now().steps - progress.skipped_steps().count();
    if (steps % config.frequency == 0 && has_stepped(i)) config.scheduler->step();
  }
}

void FitOptimizers::advance_epoch_schedules(const Progress& progress, const RunMetrics& metrics) {
  for (size_t i = 0; i < configs_.size(); ++i) {
    const OptimizerConfig& config = configs_[i];
    const bool has_schedule = config.scheduler && config.interval == OptimizerConfig::Interval::kEpoch;
    if (!has_schedule && !config.plateau) continue;
    if (progress.now().epoch % config.frequency != 0 || !has_stepped(i)) continue;
    if (has_schedule) config.scheduler->step();
    if (!config.plateau) continue;
    const auto found = metrics.of_epoch().find(config.monitor);
    if (found != metrics.of_epoch().end()) {
      config.plateau->step(static_cast<float>(found->second));
    } else {
      TORCH_CHECK_VALUE(metrics.newest().contains(config.monitor), "fit: the schedule of optimizer ", i,
                        " monitors '", config.monitor, "', which was not logged; logged were ",
                        join_names(keys_of(metrics.newest())));
    }
  }
}

std::function<bool(const at::Tensor&)> FitOptimizers::parameters_kept_elsewhere() const {
  std::set<const at::TensorImpl*> of_model;
  for (const at::Tensor& parameter : task_.module().parameters())
    of_model.insert(parameter.unsafeGetTensorImpl());
  return [of_model, this](const at::Tensor& parameter) {
    return of_model.contains(precision_.model_parameter(parameter).unsafeGetTensorImpl());
  };
}

// The gradients are those of the tensors that the optimizers step: master weights, and parameters outside the
// module too. They are numbered as in own_parameters().
StateList FitOptimizers::waiting_gradients() const {
  StateList all;
  for (size_t i = 0; i < configs_.size(); ++i) {
    if (!waiting_[i]) {
      all.emplace_back();
      continue;
    }
    const torch::optim::Optimizer& optimizer = *configs_[i].optimizer;
    const std::vector<at::Tensor> parameters = main_params(optimizer);
    StateDict gradients;
    for (size_t number = 0; number < parameters.size(); ++number) {
      const at::Tensor& gradient = parameters[number].grad();
      if (!gradient.defined()) continue;
      gradients.emplace(std::to_string(number), gradient.is_sparse() ? gradient.to_dense() : gradient);
    }
    all.emplace_back(
        StateDict{{"gradients", std::move(gradients)}, {"mode", precision_.gradient_state(optimizer)}});
  }
  return all;
}

bool FitOptimizers::load_waiting_gradients(const StateReader& state) {
  bool has_dropped = false;
  for (size_t i = 0; i < configs_.size(); ++i) {
    const StateReader waiting = state.at(i);
    if (waiting.is_null()) continue;
    const std::vector<at::Tensor> parameters = main_params(*configs_[i].optimizer);
    const StateReader gradients = waiting.at("gradients");
    waiting_[i] = precision_.can_take_gradients(waiting.at("mode")) && are_of_trained(gradients, parameters);
    has_dropped = has_dropped || !waiting_[i];
    if (!waiting_[i]) continue;
    size_t loaded = 0;
    for (size_t number = 0; number < parameters.size(); ++number) {
      const auto saved = gradients.find(std::to_string(number));
      if (!saved) continue;
      if (saved->to_tensor().sizes() != parameters[number].sizes())
        saved->fail("has a different shape from its parameter; resume with the task that was saved");
      // It is laid out as backward() does.
      parameters[number].mutable_grad() = at::empty_like(parameters[number]).copy_(saved->to_tensor());
      ++loaded;
    }
    if (loaded != gradients.size())
      gradients.fail("belong to other parameters; resume with the task that was saved");
  }
  // Restore the mode's records after all gradients are loaded, because optimizers may share a parameter.
  for (size_t i = 0; i < configs_.size(); ++i)
    if (waiting_[i]) precision_.load_gradient_state(*configs_[i].optimizer, state.at(i).at("mode"));
  return has_dropped;
}

void FitOptimizers::save(StateDict& state) const {
  StateList optimizers, own, schedules, stepped;
  const auto is_kept_elsewhere = parameters_kept_elsewhere();
  for (size_t i = 0; i < configs_.size(); ++i) {
    const OptimizerConfig& config = configs_[i];
    optimizers.emplace_back(optimizer_state(*config.optimizer));
    own.emplace_back(own_parameters(*config.optimizer, is_kept_elsewhere));
    StateDict schedule;
    if (config.scheduler) schedule.emplace("scheduler", scheduler_state(*config.scheduler));
    if (config.plateau) schedule.emplace("plateau", scheduler_state(*config.plateau));
    schedules.emplace_back(std::move(schedule));
    stepped.emplace_back(has_stepped(i));
  }
  state.emplace("optimizers", std::move(optimizers));
  state.emplace("own_parameters", std::move(own));
  state.emplace("schedules", std::move(schedules));
  state.emplace("has_stepped", std::move(stepped));
  if (!is_automatic_) state.emplace("waiting_gradients", waiting_gradients());
}

void FitOptimizers::load(const StateReader& state, Differences& differences) {
  const StateReader optimizers = state.at("optimizers"), own = state.at("own_parameters"),
                    schedules = state.at("schedules"), stepped = state.at("has_stepped");
  if (optimizers.size() != configs_.size())
    optimizers.fail("holds " + std::to_string(optimizers.size()) + " optimizers, and the task has " +
                    std::to_string(configs_.size()) + "; resume with the task that was saved");
  const auto is_kept_elsewhere = parameters_kept_elsewhere();
  for (size_t i = 0; i < configs_.size(); ++i) {
    const OptimizerConfig& config = configs_[i];
    load_optimizer_state(*config.optimizer, optimizers.at(i));
    if (own.at(i).size() > 0) load_own_parameters(*config.optimizer, is_kept_elsewhere, own.at(i));
    const std::string schedule = "the schedule of optimizer " + std::to_string(i);
    const auto load = [](auto& scheduler) {
      return [&](const StateReader& saved) { load_scheduler_state(scheduler, saved); };
    };
    if (config.scheduler)
      load_if_saved(schedules.at(i), "scheduler", schedule, differences, load(*config.scheduler));
    if (config.plateau)
      load_if_saved(schedules.at(i), "plateau", schedule, differences, load(*config.plateau));
    if (schedules.at(i).size() > 0 && !config.scheduler && !config.plateau)
      differences.push_back("its schedule of optimizer " + std::to_string(i) + " is not in this run");
    epoch_steps_[i] = stepped.at(i).to_bool() ? 1 : 0;
  }
  const auto waiting = state.find("waiting_gradients");
  if (waiting && !is_automatic_ && load_waiting_gradients(*waiting))
    differences.emplace_back("gradients that no step has used are dropped");
}

}  // namespace mantissa
