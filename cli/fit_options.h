#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/option_values.h"
#include "mantissa/data/loader.h"
#include "mantissa/optim/ema.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/registry.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa::cli {

/// What the options of `fit` mean, in the structs that the library takes. The table of options
/// (option_table.cpp) says which option goes to which member.
struct FitOptions {
  /// Every option, as it was given or by default: the members below are made from it.
  OptionValues values;

  std::string data, model, weights, output;
  double val_fraction = 0;
  int64_t classes = 0, threads = 0;
  uint64_t seed = 0;
  DataLoaderOptions loader;
  /// Without callbacks and loggers, which write into a run's folder.
  TrainerOptions trainer;
  std::string optimizer;
  /// Those of all optimizers: settings_taken() leaves what `optimizer` takes.
  OptimizerSettings optimizer_settings;
  std::string lr_schedule;
  WarmupCosineOptions warmup;
  EmaOptions ema;
  EarlyStoppingOptions early_stopping;  ///< none if its monitor is ""
  bool enable_checkpointing = true;
  ModelCheckpointOptions checkpoints;
  std::vector<std::string> loggers, callbacks;

  /// The mode's canonical name, or "all".
  const std::string& precision() const { return *trainer.precision; }
  /// What the mode does with its options; not of "all".
  PrecisionTraits traits() const { return traits_of(find_mode(precision()), trainer.precision_options); }
  /// The same options but for one.
  /// Errors: those of fit_options().
  FitOptions with(std::string_view option, OptionValue value) const;
};

/// `values` must have every option.
/// Errors: c10::ValueError, the option in it, for a value that is none of the choices, out of range or
///         without meaning. What the options mean together, resolve() checks.
FitOptions fit_options(const OptionValues& values);

}  // namespace mantissa::cli
