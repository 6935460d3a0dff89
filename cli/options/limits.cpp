#include <cstdint>
#include <optional>
#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/option_parsers.h"
#include "cli/options/groups.h"

namespace mantissa::cli {
namespace {

/// 0 leaves the member unset: the interval then counts batches over all epochs.
Destination to_check_val_every_n_epoch() {
  return {kind_of<int64_t>(), [](FitOptions& o, const Option&, const OptionValue& value) {
            const auto epochs = std::get<int64_t>(value);
            o.trainer.check_val_every_n_epoch = epochs == 0 ? std::nullopt : std::optional(epochs);
          }};
}

}  // namespace

std::vector<Option> limit_options() {
  constexpr auto kGroup = Group::kLimits;
  constexpr Range kOrNoLimit{-1, kLargest, "no limit"};
  return {
      {.name = "max_epochs",
       .group = kGroup,
       .to = to(&TrainerOptions::max_epochs),
       .default_value = 15,
       .help = "passes over the training data; -1: no limit",
       .default_for_text = -1,
       .range = kOrNoLimit,
       .in_resume = true,
       .known_as = {"epochs", "num_epochs", "num_train_epochs"}},
      {.name = "max_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::max_steps),
       .default_value = -1,
       .help = "optimizer steps; -1: no limit",
       .default_for_text = 1500,
       .range = kOrNoLimit,
       .in_resume = true,
       .known_as = {"steps", "num_steps"}},
      {.name = "max_time",
       .group = kGroup,
       .to = to(&TrainerOptions::max_time, parse_max_time),
       .default_value = "",
       .help = "DD:HH:MM:SS, after which training ends, time before a resume included",
       .in_resume = true},
      {.name = "min_epochs",
       .group = kGroup,
       .to = to(&TrainerOptions::min_epochs),
       .default_value = 0,
       .help = "minimum number of epochs before early stopping"},
      {.name = "min_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::min_steps),
       .default_value = 0,
       .help = "minimum number of optimizer steps before early stopping"},
      {.name = "early_stopping",
       .group = kGroup,
       .to = to(&EarlyStoppingOptions::monitor),
       .default_value = "",
       .help =
           "end training when this no longer improves: val_loss, val_accuracy or train_loss; empty: never "
           "stop early",
       .choices = metrics(),
       .may_be_empty = true,
       .in_resume = true},
      {.name = "patience",
       .group = kGroup,
       .to = to(&EarlyStoppingOptions::patience),
       .default_value = 3,
       .help = "checks in a row without an improvement before stopping",
       .range = kFromZero,
       .in_resume = true},
      {.name = "min_delta",
       .group = kGroup,
       .to = to(&EarlyStoppingOptions::min_delta),
       .default_value = 0.0,
       .help = "early stopping: minimum improvement",
       .range = kFromZero},
      {.name = "limit_train_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::limit_train_batches, parse_batch_limit),
       .default_value = "1.0",
       .help = "batches of an epoch: a count (100) or a fraction (0.25)"},
      {.name = "limit_val_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::limit_val_batches, parse_batch_limit),
       .default_value = "1.0",
       .help = "batches of a validation: a count or a fraction; 0: no validation",
       .only_for_training = true},
      {.name = "overfit_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::overfit_batches, parse_batch_limit),
       .default_value = "0.0",
       .help = "train and validate on this many batches, the same in every epoch; 0.0: all",
       .only_for_training = true},
      {.name = "val_check_interval",
       .group = kGroup,
       .to = to(&TrainerOptions::val_check_interval, parse_batch_limit),
       .default_value = "1.0",
       .help = "validate every N batches, or after this fraction of an epoch"},
      {.name = "check_val_every_n_epoch",
       .group = kGroup,
       .to = to_check_val_every_n_epoch(),
       .default_value = 1,
       .help = "validate in every N-th epoch; 0: --val-check-interval counts batches over all epochs",
       .range = {{0, kLargest, "--val-check-interval over all epochs"}}},
      {.name = "num_sanity_val_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::num_sanity_val_steps),
       .default_value = 2,
       .help = "validation batches before training, to find at once what is wrong there; -1: all"},
      {.name = "fast_dev_run",
       .group = kGroup,
       .to = to(&TrainerOptions::fast_dev_run),
       .default_value = 0,
       .help =
           "above 0: run only this many batches of everything, and save nothing unless there is an --output",
       .only_for_training = true},
  };
}

}  // namespace mantissa::cli
