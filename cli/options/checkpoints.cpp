#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/options/groups.h"

namespace mantissa::cli {

std::vector<Option> checkpoint_options() {
  constexpr auto kGroup = Group::kCheckpoints;
  return {
      {.name = "output",
       .group = kGroup,
       .to = to(&FitOptions::output),
       .default_value = "",
       .help = "folder for the run's files; empty: runs/DATA-MODEL-PRECISION-N",
       .names_a_file = true,
       .known_as = {"output_dir", "out", "default_root_dir"}},
      {.name = "enable_checkpointing",
       .group = kGroup,
       .to = to(&FitOptions::enable_checkpointing),
       .default_value = true,
       .help = "save checkpoints after each epoch and at the end, from which `mantissa resume` continues"},
      {.name = "every_n_train_steps",
       .group = kGroup,
       .to = to(&ModelCheckpointOptions::every_n_train_steps),
       .default_value = 0,
       .help = "also save a checkpoint every N optimizer steps; 0: none",
       .range = kFromZero,
       .in_resume = true},
      {.name = "save_top_k",
       .group = kGroup,
       .to = to(&ModelCheckpointOptions::save_top_k),
       .default_value = 1,
       .help = "number of best checkpoints to keep, besides the newest; -1: all",
       .range = {{-1, kLargest, "all"}},
       .in_resume = true},
      {.name = "monitor",
       .group = kGroup,
       .to = to(&ModelCheckpointOptions::monitor),
       .default_value = "val_loss",
       .help = "metric that selects the best checkpoints: val_loss, val_accuracy or train_loss",
       .choices = metrics()},
  };
}

}  // namespace mantissa::cli
