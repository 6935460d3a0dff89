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
  TORCH_CHECK_VALUE(!configs.empty(), "fit: configure_optimizers() returned no optimizer");
  for (size_t i = 0; i < configs.size(); ++i) {
    TORCH_CHECK_VALUE(configs[i].optimizer, "fit: optimizer ", i, " of configure_optimizers() is null");
    TORCH_CHECK_VALUE(configs[i].frequency >= 1, "fit: optimizer ", i,
                      " of configure_optimizers() has a schedule with frequency ", configs[i].frequency,
                      "; give at least 1");
    for (size_t j = 0; j < i; ++j)
      TORCH_CHECK_VALUE(configs[i].optimizer != configs[j].optimizer, "fit: optimizers ", j, " and ", i,
                        " of configure_optimizers() are one; return it once");
  }
  TORCH_CHECK_VALUE(configs.size() == 1 || !is_automatic, "fit: configure_optimizers() returned ",
                    configs.size(),
                    " optimizers, and which of them a loss is for only the task knows: override "
                    "automatic_optimization() to return false, and step them in training_step()");
  TORCH_CHECK_TYPE(
      options.accumulate_grad_batches.is_always(1) || !has_line_search(*configs.front().optimizer),
      "fit: LBFGS evaluates the last batch of a window several times, which accumulate_grad_batches=",
      options.accumulate_grad_batches.to_string(), " cannot follow; set it to 1, or take another optimizer");
}

}  // namespace

void FitOptimizers::set_up(const TrainerOptions& options) {
  is_automatic_ = task_.automatic_optimization();
  std::vector<OptimizerConfig> configs = task_.configure_optimizers();
  check_optimizers(configs, options, is_automatic_);
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

/// Gradients that a task with manual optimization has accumulated and not used in a step, by their weights'
/// names.
StateDict FitOptimizers::waiting_gradients() const {
  StateDict gradients;
  if (std::find(waiting_.begin(), waiting_.end(), true) == waiting_.end()) return gradients;
  std::set<const at::TensorImpl*> used;
  for (size_t i = 0; i < configs_.size(); ++i) {
    if (waiting_[i]) continue;
    for (const at::Tensor& parameter : main_params(*configs_[i].optimizer))
      used.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& parameter : task_.module().named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (gradient.defined() && !used.contains(parameter.value().unsafeGetTensorImpl()))
      gradients.emplace(parameter.key(), gradient.is_sparse() ? gradient.to_dense() : gradient);
  }
  return gradients;
}

void FitOptimizers::load_waiting_gradients(const StateReader& state) {
  const auto parameters = task_.module().named_parameters();
  for (const auto& [name, value] : state.to_dict()) {
    const StateReader saved = state.at(name);
    const at::Tensor* parameter = parameters.find(name);
    if (!parameter) saved.fail("belongs to no weight of this model; resume with the task that was saved");
    const at::Tensor& gradient = saved.to_tensor();
    if (gradient.sizes() != parameter->sizes())
      saved.fail("has a different shape from its weight; resume with the task that was saved");
    parameter->mutable_grad() = at::empty_like(*parameter).copy_(gradient);  // laid out as backward() does
  }
}

void FitOptimizers::save(StateDict& state) const {
  StateList optimizers, own, schedules, stepped, waiting;
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
    waiting.emplace_back(static_cast<bool>(waiting_[i]));
  }
  state.emplace("optimizers", std::move(optimizers));
  state.emplace("own_parameters", std::move(own));
  state.emplace("schedules", std::move(schedules));
  state.emplace("learned", std::move(stepped));
  if (is_automatic_) return;
  state.emplace("unstepped", std::move(waiting));
  state.emplace("gradients", waiting_gradients());
}

void FitOptimizers::load(const StateReader& state, Differences& differences) {
  const StateReader optimizers = state.at("optimizers"), own = state.at("own_parameters"),
                    schedules = state.at("schedules"), stepped = state.at("learned");
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
  const auto gradients = state.find("gradients");
  if (!gradients || is_automatic_) return;
  if (state.at("precision").at("name").to_string() == precision_.name()) {
    load_waiting_gradients(*gradients);
    const StateReader waiting = state.at("unstepped");
    for (size_t i = 0; i < configs_.size(); ++i) waiting_[i] = waiting.at(i).to_bool();
  } else if (gradients->size() > 0) {
    differences.emplace_back("gradients that no step has used are dropped");
  }
}

}  // namespace mantissa
