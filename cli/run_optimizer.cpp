#include "cli/run_optimizer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "cli/option.h"
#include "cli/resolve.h"
#include "mantissa/core/suggest.h"
#include "mantissa/optim/low_bit_optimizer.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/registry.h"

namespace mantissa::cli {
namespace {

/// Limits the warm-up to half of the run's steps, so that the learning rate also falls in a short run.
int64_t warmup_steps(const FitOptions& o, int64_t steps) {
  const int64_t requested = o.warmup.warmup_steps, possible = std::min(requested, steps / 2);
  const OptionValue& by_default = default_of(*find_option("warmup_steps"), reads_text(o.values));
  const bool is_meant = OptionValue(requested) != by_default && o.trainer.fast_dev_run == 0;
  if (possible < requested && is_meant) {
    TORCH_WARN_ONCE("--warmup-steps ", requested, " is more than half of the run's ", steps,
                    " steps, so the learning rate rises over only ", possible,
                    " steps; choose fewer, or train longer");
  }
  return possible;
}

/// Gives the weights of the modules, or the weights themselves, 32-bit states.
void override_bits(LowBitOptimizer& optimizer, const torch::nn::Module& module,
                   const std::vector<std::string>& names) {
  const auto modules = module.named_modules("", /*include_self=*/false);
  const auto parameters = module.named_parameters();
  for (const std::string& name : names) {
    if (parameters.contains(name)) {
      optimizer.override_config(module, name, {.optim_bits = 32});
      continue;
    }
    TORCH_CHECK_VALUE(modules.contains(name), "--optim-32bit-modules: the model has no module or weight '",
                      name, "'", did_you_mean(name, modules.keys()),
                      " (mantissa inspect FILE lists the weights of a file)");
    optimizer.override_config(*modules[name], {.optim_bits = 32});
  }
}

}  // namespace

OptimizerConfig make_optimizer(const FitOptions& o, torch::nn::Module& module, int64_t steps) {
  OptimizerConfig config;
  OptimizerSettings settings = o.optimizer_settings;
  settings.seed = o.seed;
  config.optimizer =
      mantissa::make_optimizer(o.optimizer, module, settings_taken(find_optimizer(o.optimizer), settings));
  if (!o.optim_32bit_modules.empty())
    override_bits(dynamic_cast<LowBitOptimizer&>(*config.optimizer), module, o.optim_32bit_modules);
  if (o.lr_schedule == "cosine") {
    config.scheduler = std::make_shared<WarmupCosineLR>(
        *config.optimizer,
        WarmupCosineOptions{
            .warmup_steps = warmup_steps(o, steps), .total_steps = steps, .final_factor = 0.1});
    config.interval = OptimizerConfig::Interval::kStep;
  }
  return config;
}

}  // namespace mantissa::cli
