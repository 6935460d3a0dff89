#include "mantissa/trainer/callbacks/learning_rate_monitor.h"

#include <map>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/suggest.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// "AdamW" for torch::optim::AdamW.
std::string class_name(const torch::optim::Optimizer& optimizer) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  const std::string plain = name.substr(0, name.find('<'));
  const size_t space = plain.rfind("::");
  return space == std::string::npos ? plain : plain.substr(space + 2);
}

bool has_schedule(const OptimizerConfig& config) { return config.scheduler || config.plateau; }

std::vector<std::string> names_of(const std::vector<OptimizerConfig>& optimizers) {
  std::vector<std::string> names(optimizers.size());
  std::map<std::string, int64_t> seen;
  for (const bool scheduled : {true, false}) {
    for (size_t i = 0; i < optimizers.size(); ++i) {
      if (has_schedule(optimizers[i]) != scheduled) continue;
      names[i] = c10::str("lr-", class_name(*optimizers[i].optimizer));
      const int64_t before = seen[names[i]]++;
      if (before > 0) names[i] = c10::str(names[i], "-", before);
    }
  }
  return names;
}

/// 0 if the group has no such option.
double option(const StateReader& group, const char* name) {
  const auto found = group.find(name);
  return found ? found->to_double() : 0;
}

double momentum_of(const StateReader& group) {
  const auto betas = group.find("betas");
  return betas ? betas->at(size_t{0}).to_double() : option(group, "momentum");
}

}  // namespace

LearningRateMonitor::LearningRateMonitor(LearningRateMonitorOptions options) : options_(std::move(options)) {
  const auto& interval = options_.logging_interval;
  TORCH_CHECK_VALUE(!interval || *interval == "step" || *interval == "epoch",
                    "LearningRateMonitor: unknown logging_interval '", *interval, "'",
                    did_you_mean(*interval, {"step", "epoch"}), "; choose step or epoch, or leave it unset");
}

void LearningRateMonitor::on_fit_start(Trainer& trainer, const FitPlan& /*plan*/) {
  const TrainerOptions& run = trainer.options();
  TORCH_CHECK_VALUE(!run.loggers.empty() || run.fast_dev_run,
                    "LearningRateMonitor: the Trainer has no logger; give it one, or leave the callback out");
  names_ = names_of(trainer.optimizers());
  logged_epoch_ = -1;
}

void LearningRateMonitor::on_train_batch_start(Trainer& trainer, const Batch& /*batch*/,
                                               int64_t /*batch_index*/) {
  if (!trainer.should_log()) return;
  // Logs all optimizers, also those that will not step in this batch.
  for (size_t i = 0; i < names_.size(); ++i) {
    const OptimizerConfig& config = trainer.optimizers()[i];
    if (is_logged(config, /*by_epoch=*/false)) trainer.log_metrics(values(config, names_[i]));
  }
}

void LearningRateMonitor::on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& optimizer) {
  const bool is_first = logged_epoch_ != trainer.progress().epoch;
  logged_epoch_ = trainer.progress().epoch;
  if (!is_first && !trainer.should_log()) return;
  for (size_t i = 0; i < names_.size(); ++i) {
    const OptimizerConfig& config = trainer.optimizers()[i];
    // A task that steps by itself may have changed the rate since the batch began.
    const bool is_this = config.optimizer.get() == &optimizer;
    if ((is_first && is_logged(config, true)) ||
        (is_this && trainer.should_log() && is_logged(config, false)))
      trainer.log_metrics(values(config, names_[i]));
  }
}

bool LearningRateMonitor::is_logged(const OptimizerConfig& config, bool by_epoch) const {
  if (options_.logging_interval) return by_epoch == (*options_.logging_interval == "epoch");
  if (!has_schedule(config)) return true;
  const bool epochs_schedule = config.plateau || config.interval == OptimizerConfig::Interval::kEpoch;
  const bool steps_schedule = config.scheduler && config.interval == OptimizerConfig::Interval::kStep;
  return by_epoch ? epochs_schedule : steps_schedule;
}

MetricValues LearningRateMonitor::values(const OptimizerConfig& config, const std::string& name) const {
  MetricValues values;
  const auto& groups = config.optimizer->param_groups();
  // The options of libtorch's optimizers share only the rate; the other values are in the optimizer's state.
  const StateDict state =
      options_.log_momentum || options_.log_weight_decay ? optimizer_state(*config.optimizer) : StateDict();
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string key = groups.size() == 1 ? name : name + "/pg" + std::to_string(i + 1);
    values.insert_or_assign(key, groups[i].options().get_lr());
    if (state.empty()) continue;
    const StateReader group = StateReader(state).at("param_groups").at(i);
    if (options_.log_momentum) values.insert_or_assign(key + "-momentum", momentum_of(group));
    if (options_.log_weight_decay)
      values.insert_or_assign(key + "-weight_decay", option(group, "weight_decay"));
  }
  return values;
}

void LearningRateMonitor::load_state_dict(const StateReader& state) {
  logged_epoch_ = state.at("logged_epoch").to_int(-1, kMaxCount);
}

}  // namespace mantissa
