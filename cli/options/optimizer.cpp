#include <fmt/format.h>
#include <string>
#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/option_parsers.h"
#include "cli/options/groups.h"
#include "mantissa/core/suggest.h"
#include "mantissa/optim/registry.h"

namespace mantissa::cli {

namespace {

/// Returns the momenta that optimizers have by default instead of the option's: "sgd8bit has 0.9, ...".
std::string own_momenta() {
  std::vector<std::string> all;
  for (const OptimizerEntry& entry : optimizers())
    if (entry.defaults.momentum.value_or(0) > 0)
      all.push_back(fmt::format("{} has {}", entry.name, *entry.defaults.momentum));
  return join_names(all);
}

}  // namespace

std::vector<Option> optimizer_options() {
  constexpr auto kGroup = Group::kOptimizer;
  const std::vector<std::string> names = registered_names(Registry::kOptimizers);
  return {
      {.name = "optimizer",
       .group = kGroup,
       .to = to(&FitOptions::optimizer),
       .default_value = "sgd",
       .help = either(names),
       .default_for_text = "adamw",
       .choices = names},
      {.name = "lr",
       .group = kGroup,
       .to = to(&OptimizerSettings::lr),
       .default_value = 0.05,
       .help = "learning rate; lion8bit and rmsprop8bit need about 0.005 for images",
       .default_for_text = 1e-3,
       .range = {{0, 1e6}},
       .known_as = {"learning_rate"}},
      {.name = "momentum",
       .group = kGroup,
       .to = to(&OptimizerSettings::momentum),
       .default_value = 0.9,
       .help = "momentum of SGD; by default " + own_momenta(),
       .default_for_text = 0.0,
       .range = {{0, 1}}},
      {.name = "beta1",
       .group = kGroup,
       .to = to(&OptimizerSettings::beta1),
       .default_value = 0.9,
       .help = "Adam, AdamW, Lion and the AdamW of muon: decay of the mean gradient",
       .range = {{0, kBelowOne}}},
      {.name = "beta2",
       .group = kGroup,
       .to = to(&OptimizerSettings::beta2),
       .default_value = 0.95,
       .help = "Adam, AdamW and the AdamW of muon: decay of the mean squared gradient",
       .range = {{0, kBelowOne}}},
      {.name = "alpha",
       .group = kGroup,
       .to = to(&OptimizerSettings::alpha),
       .default_value = 0.99,
       .help = "rmsprop8bit: decay of the mean squared gradient",
       .range = {{1e-6, kBelowOne}}},
      {.name = "min_8bit_size",
       .group = kGroup,
       .to = to(&OptimizerSettings::min_8bit_size),
       .default_value = 4096,
       .help = "8-bit and 4-bit optimizers: smaller tensors have 32-bit states",
       .range = {{0, 1e15}}},
      {.name = "optim_32bit_modules",
       .group = kGroup,
       .to = to(&FitOptions::optim_32bit_modules, parse_words_or_none),
       .default_value = "",
       .help = "8-bit and 4-bit optimizers: modules and weights with 32-bit states, for example "
               "token_embedding,head",
       .is_list = true,
       .known_as = {"optim_bits"}},
      {.name = "weight_decay",
       .group = kGroup,
       .to = to(&OptimizerSettings::weight_decay),
       .default_value = 5e-4,
       .help = "weight decay",
       .default_for_text = 0.1,
       .range = {{0, 1e6}},
       .known_as = {"decay"}},
      {.name = "stochastic_rounding",
       .group = kGroup,
       .to = to(&OptimizerSettings::stochastic_rounding),
       .default_value = false,
       .help =
           "a fused, 8-bit or 4-bit optimizer, or muon, rounds 16-bit weights up or down at random, so that "
           "small updates are not lost"},
      {.name = "accumulate_grad_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::accumulate_grad_batches),
       .default_value = 1,
       .help = "batches whose gradients are added before a step",
       .range = {{1, kLargest}},
       .known_as = {"gradient_accumulation_steps"}},
      {.name = "gradient_clip_val",
       .group = kGroup,
       .to = to(&TrainerOptions::gradient_clip_val),
       .default_value = 0.0,
       .help = "gradient clipping limit; 0: no clipping",
       .default_for_text = 1.0,
       .range = {{0, kLargest, "no clipping"}},
       .known_as = {"grad_clip", "max_grad_norm"}},
      {.name = "gradient_clip_algorithm",
       .group = kGroup,
       .to = to(&TrainerOptions::gradient_clip_algorithm),
       .default_value = "norm",
       .help = "norm or value",
       .choices = {"norm", "value"}},
      {.name = "ema_decay",
       .group = kGroup,
       .to = to(&EmaOptions::decay),
       .default_value = 0.0,
       .help = "decay of the moving average of the weights (EMA), used for validation and saved; 0: none",
       .range = {{0, kBelowOne, "no average"}},
       .known_as = {"ema"}},
  };
}

}  // namespace mantissa::cli
