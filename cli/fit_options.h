#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/data_names.h"
#include "cli/image_options.h"
#include "cli/option_values.h"
#include "mantissa/data/loader.h"
#include "mantissa/lora/lora_config.h"
#include "mantissa/optim/ema.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/registry.h"
#include "mantissa/trainer/callbacks/divergence_monitor.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/trainer_options.h"

namespace mantissa::cli {

/// The options of `fit`, in the structs that the library takes. The table of options (options/)
/// defines the member for each option.
struct FitOptions {
  /// Every option, as given or by default. The members below are made from it.
  OptionValues values;

  std::string data, target, tokenizer, chat_template, model, weights, output;
  std::vector<std::string> features;    ///< the columns of a table to train on; empty: all but the target
  bool new_head = false;                ///< --weights leaves the output layer as it is
  std::vector<std::string> train_only;  ///< names for cli::train_only(); empty: all
  std::optional<LoraConfig> lora;
  std::string adapter;  ///< a folder of PEFT's to begin with; "": none
  bool activation_checkpointing = false;
  int64_t loss_chunk = 0;  ///< positions whose logits are computed at a time; 0: all of a batch
  double val_fraction = 0;
  int64_t classes = 0, vocabulary = 0, context = 0, threads = 0;
  uint64_t seed = 0;
  DataLoaderOptions loader;
  ImageOptions images;
  /// Has no callbacks and loggers, because these write into a run's folder.
  TrainerOptions trainer;
  std::string optimizer;
  /// The settings of all optimizers; settings_taken() selects those that `optimizer` takes.
  OptimizerSettings optimizer_settings;
  std::vector<std::string>
      optim_32bit_modules;  ///< names of modules and weights; for 8- and 4-bit optimizers
  std::string lr_schedule;
  WarmupCosineOptions warmup;
  EmaOptions ema;
  EarlyStoppingOptions early_stopping;  ///< none if its monitor is ""
  bool enable_checkpointing = true;
  ModelCheckpointOptions checkpoints;
  std::vector<std::string> loggers, callbacks;
  std::vector<std::string> fallback;  ///< the modes after precision(), by their canonical names
  DivergenceMonitorOptions divergence;
  /// What the run whose model reads the data calls its classes and columns; empty for a new run. These and the sizes are no options.
  DataNames names;
  std::optional<DataSizes> sizes;  ///< those of the run that is resumed, which load_data() checks
  bool reads_labels = true;        ///< false for predictions, which need none
  int64_t precision_every_n_steps = 0, error_every_n_steps = 0;  ///< of PrecisionMonitor; 0: unset

  /// The mode's canonical name, or "all".
  const std::string& precision() const { return *trainer.precision; }
  /// The traits of the mode with its options. Not for "all".
  PrecisionTraits traits() const { return traits_of(find_mode(precision()), trainer.precision_options); }
  /// Returns the same options with one of them changed.
  /// Errors: those of fit_options().
  FitOptions with(std::string_view option, OptionValue value) const;
};

/// `values` must have every option.
/// Errors: c10::ValueError that names the option, for a value that is not one of the choices, out of range or
///         not parsable. resolve() checks whether the options fit together.
FitOptions fit_options(const OptionValues& values);

}  // namespace mantissa::cli
