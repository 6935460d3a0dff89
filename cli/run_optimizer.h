#pragma once

#include <cstdint>

#include "cli/fit_options.h"
#include "mantissa/trainer/task.h"

namespace torch::nn {
class Module;
}

namespace mantissa::cli {

/// Makes the optimizer of the run and its schedule. `steps` is that of the whole run, which the schedule
/// needs.
OptimizerConfig make_optimizer(const FitOptions& options, torch::nn::Module& module, int64_t steps);

}  // namespace mantissa::cli
