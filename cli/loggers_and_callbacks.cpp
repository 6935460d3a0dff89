#include "cli/loggers_and_callbacks.h"

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "cli/errors.h"
#include "cli/recipe.h"
#include "cli/run_folder.h"
#include "cli/run_length.h"
#include "mantissa/trainer/callbacks/device_stats_monitor.h"
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

const char* mode_of(const std::string& metric) { return metric.ends_with("accuracy") ? "max" : "min"; }

}  // namespace

TrainerOptions trainer_options(const FitOptions& o) {
  return usage([&] {
    TrainerOptions t;
    t.precision = *o.precision;
    t.precision_options = precision_options(o);
    t.float32_matmul_precision = *o.float32_matmul_precision;
    t.cpu_kernels = *o.cpu_kernels;
    t.device = *o.device;
    t.channels_last = *o.channels_last;
    t.benchmark = *o.benchmark;
    t.transactional = *o.transactional;
    t.trace_nonfinite = *o.trace_nonfinite;
    t.max_epochs = *o.max_epochs;
    t.max_steps = *o.max_steps;
    t.min_epochs = *o.min_epochs;
    t.min_steps = *o.min_steps;
    const RunLength limits = run_length(o);
    t.max_time = limits.max_time;
    t.limit_train_batches = limits.limit_train_batches;
    t.limit_val_batches = limits.limit_val_batches;
    t.overfit_batches = limits.overfit_batches;
    t.val_check_interval = limits.val_check_interval;
    t.check_val_every_n_epoch =
        *o.check_val_every_n_epoch == 0 ? std::nullopt : std::optional(*o.check_val_every_n_epoch);
    t.num_sanity_val_steps = *o.num_sanity_val_steps;
    t.fast_dev_run = *o.fast_dev_run;
    t.detect_anomaly = *o.detect_anomaly;
    t.accumulate_grad_batches = *o.accumulate_grad_batches;
    t.gradient_clip_val = *o.gradient_clip_val;
    t.gradient_clip_algorithm = *o.gradient_clip_algorithm;
    t.log_every_n_steps = *o.log_every_n_steps;
    const Trainer words_are_right(t);
    return t;
  });
}

std::vector<std::shared_ptr<Logger>> make_loggers(const FitOptions& o, const std::filesystem::path& folder) {
  std::vector<std::shared_ptr<Logger>> loggers;
  if (*o.fast_dev_run > 0) return loggers;  // the Trainer would leave them out; nor should they make files
  for (const std::string& word : logger_words(o)) {
    if (word == "csv") loggers.push_back(std::make_shared<CSVLogger>(folder));
    if (word == "jsonl") loggers.push_back(std::make_shared<JSONLinesLogger>(folder));
    if (word == "tensorboard") loggers.push_back(std::make_shared<TensorBoardLogger>(folder));
  }
  Hyperparameters told;
  for_each_option(o, [&](const char* name, const auto& member, const char*) {
    if (!member || std::string(name) == "output") return;
    if constexpr (std::is_same_v<std::decay_t<decltype(*member)>, uint64_t>) {
      // Loggers have no unsigned numbers.
      const bool fits = std::in_range<int64_t>(*member);
      told.emplace(name, fits ? Hyperparameter(static_cast<int64_t>(*member)) : std::to_string(*member));
    } else {
      told.emplace(name, *member);
    }
  });
  for (const auto& logger : loggers)
    if (logger->name() != "csv") logger->log_hyperparams(told);  // config.yaml has them in that form
  return loggers;
}

std::vector<std::shared_ptr<Callback>> make_callbacks(const FitOptions& o,
                                                      const std::filesystem::path& folder) {
  std::vector<std::shared_ptr<Callback>> callbacks;
  if (*o.enable_checkpointing)
    callbacks.push_back(std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder / kCheckpoints,
                               .monitor = *o.monitor,
                               .mode = mode_of(*o.monitor),
                               .save_top_k = *o.save_top_k,
                               .every_n_train_steps = *o.every_n_train_steps}));
  if (!o.early_stopping->empty())
    callbacks.push_back(
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = *o.early_stopping,
                                                             .min_delta = *o.min_delta,
                                                             .patience = *o.patience,
                                                             .mode = mode_of(*o.early_stopping)}));
  for (const std::string& word : callback_words(o)) {
    if (word == "LearningRateMonitor") callbacks.push_back(std::make_shared<LearningRateMonitor>());
    if (word == "PrecisionMonitor") callbacks.push_back(std::make_shared<PrecisionMonitor>());
    if (word == "DeviceStatsMonitor") callbacks.push_back(std::make_shared<DeviceStatsMonitor>());
  }
  if (*o.ema_decay > 0)
    callbacks.push_back(std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{{*o.ema_decay}}));
  return callbacks;
}

}  // namespace mantissa::cli
