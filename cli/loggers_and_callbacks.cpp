#include "cli/loggers_and_callbacks.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "cli/errors.h"
#include "cli/option.h"
#include "cli/run_folder.h"
#include "mantissa/trainer/callbacks/device_stats_monitor.h"
#include "mantissa/trainer/callbacks/divergence_monitor.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/learning_rate_monitor.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/precision_monitor.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/loggers/json_lines_logger.h"
#include "mantissa/trainer/loggers/tensorboard_logger.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

/// Loggers support no unsigned numbers.
template <typename T>
Hyperparameter hyperparameter(const T& value) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (!std::in_range<int64_t>(value)) return std::to_string(value);
    return static_cast<int64_t>(value);
  } else {
    return value;
  }
}

std::shared_ptr<PrecisionMonitor> precision_monitor(const FitOptions& o) {
  const auto unless_0 = [](int64_t n) { return n == 0 ? std::nullopt : std::optional(n); };
  return std::make_shared<PrecisionMonitor>(
      PrecisionMonitorOptions{.every_n_steps = unless_0(o.precision_every_n_steps),
                              .error_every_n_steps = unless_0(o.error_every_n_steps)});
}

const char* mode_of(const std::string& metric) { return metric.ends_with("accuracy") ? "max" : "min"; }

}  // namespace

TrainerOptions trainer_options(const FitOptions& o) {
  usage([&] { const Trainer checked(o.trainer); });
  return o.trainer;
}

std::vector<std::shared_ptr<Logger>> make_loggers(const FitOptions& o, const std::filesystem::path& folder) {
  std::vector<std::shared_ptr<Logger>> loggers;
  if (o.trainer.fast_dev_run > 0)
    return loggers;  // the Trainer would leave them out, and they must not make files
  for (const std::string& word : o.loggers) {
    if (word == "csv") loggers.push_back(std::make_shared<CSVLogger>(folder));
    if (word == "jsonl") loggers.push_back(std::make_shared<JSONLinesLogger>(folder));
    if (word == "tensorboard") loggers.push_back(std::make_shared<TensorBoardLogger>(folder));
  }
  Hyperparameters hyperparameters;
  for (const Option& option : options()) {
    const OptionValue* const value = o.values.find(option.name);
    if (!value || option.name == "output") continue;
    std::visit([&](const auto& held) { hyperparameters.emplace(option.name, hyperparameter(held)); }, *value);
  }
  for (const auto& logger : loggers)
    if (logger->name() != "csv")
      logger->log_hyperparams(hyperparameters);  // config.yaml has them in that form
  return loggers;
}

std::vector<std::shared_ptr<Callback>> make_callbacks(const FitOptions& o,
                                                      const std::filesystem::path& folder) {
  std::vector<std::shared_ptr<Callback>> callbacks;
  if (o.enable_checkpointing) {
    ModelCheckpointOptions saving = o.checkpoints;
    saving.dirpath = folder / kCheckpoints;
    saving.mode = mode_of(saving.monitor);
    callbacks.push_back(std::make_shared<ModelCheckpoint>(std::move(saving)));
  }
  if (!o.early_stopping.monitor.empty()) {
    EarlyStoppingOptions stopping = o.early_stopping;
    stopping.mode = mode_of(stopping.monitor);
    callbacks.push_back(std::make_shared<EarlyStopping>(std::move(stopping)));
  }
  const bool has_monitor = std::count(o.callbacks.begin(), o.callbacks.end(), "DivergenceMonitor") > 0;
  if (has_monitor || !o.fallback.empty())
    callbacks.push_back(std::make_shared<DivergenceMonitor>(o.divergence));
  for (const std::string& word : o.callbacks) {
    if (word == "LearningRateMonitor") callbacks.push_back(std::make_shared<LearningRateMonitor>());
    if (word == "PrecisionMonitor") callbacks.push_back(precision_monitor(o));
    if (word == "DeviceStatsMonitor") callbacks.push_back(std::make_shared<DeviceStatsMonitor>());
  }
  if (o.ema.decay > 0)
    callbacks.push_back(std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = o.ema}));
  return callbacks;
}

}  // namespace mantissa::cli
