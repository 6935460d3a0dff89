#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/options/groups.h"

namespace mantissa::cli {

std::vector<Option> schedule_options() {
  constexpr auto kGroup = Group::kSchedule;
  return {
      {.name = "lr_schedule",
       .group = kGroup,
       .to = to(&FitOptions::lr_schedule),
       .default_value = "cosine",
       .help = "constant or cosine (to a tenth, over the whole run)",
       .choices = {"constant", "cosine"},
       .known_as = {"scheduler"}},
      {.name = "warmup_steps",
       .group = kGroup,
       .to = to(&WarmupCosineOptions::warmup_steps),
       .default_value = 20,
       .help = "steps over which the learning rate rises to --lr",
       .default_for_text = 100,
       .range = {{0, 1e15}},
       .known_as = {"warmup"}},
  };
}

}  // namespace mantissa::cli
