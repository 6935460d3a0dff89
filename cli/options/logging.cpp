#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/options/groups.h"

namespace mantissa::cli {

std::vector<Option> logging_options() {
  constexpr auto kGroup = Group::kLogging;
  return {
      {.name = "logger",
       .group = kGroup,
       .to = to_list(&FitOptions::loggers),
       .default_value = "csv,tensorboard",
       .help = "comma-separated list of csv, tensorboard and jsonl; or none",
       .choices = {"csv", "tensorboard", "jsonl", "none"},
       .is_list = true,
       .in_resume = true},
      {.name = "log_every_n_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::log_every_n_steps),
       .default_value = 50,
       .help = "log metrics every N optimizer steps; 0: only after each epoch",
       .range = kFromZero,
       .in_resume = true},
      {.name = "callbacks",
       .group = kGroup,
       .to = to_list(&FitOptions::callbacks),
       .default_value = "none",
       .help = "comma-separated list of LearningRateMonitor, PrecisionMonitor, DeviceStatsMonitor and "
               "DivergenceMonitor; or none",
       .choices = {"LearningRateMonitor", "PrecisionMonitor", "DeviceStatsMonitor", "DivergenceMonitor",
                   "none"},
       .is_list = true},
      {.name = "precision_every_n_steps",
       .group = kGroup,
       .to = to(&FitOptions::precision_every_n_steps),
       .default_value = 0,
       .help = "PrecisionMonitor: examine every N optimizer steps; 0: the steps that log metrics",
       .range = kFromZero},
      {.name = "error_every_n_steps",
       .group = kGroup,
       .to = to(&FitOptions::error_every_n_steps),
       .default_value = 0,
       .help = "PrecisionMonitor: measure the errors of FP8 products every N optimizer steps; 0: never",
       .range = kFromZero},
      {.name = "divergence_patience",
       .group = kGroup,
       .to = to(&DivergenceMonitorOptions::patience),
       .default_value = 20,
       .help = "DivergenceMonitor: steps in a row without a finite loss or gradient that end a run",
       .range = {{1, kLargest}}},
      {.name = "divergence_factor",
       .group = kGroup,
       .to = to(&DivergenceMonitorOptions::factor),
       .default_value = 2.0,
       .help = "DivergenceMonitor: a mean loss of this many times the first one ends a run; 0: none does",
       .range = kFromZero},
  };
}

}  // namespace mantissa::cli
