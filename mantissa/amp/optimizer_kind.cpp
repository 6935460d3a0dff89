#include "mantissa/amp/optimizer_kind.h"

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/step_scaling.h"

namespace mantissa {

StepSupportsAmpScaling* as_self_unscaling(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<StepSupportsAmpScaling*>(&optimizer);
}

const StepSupportsAmpScaling* as_self_unscaling(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const StepSupportsAmpScaling*>(&optimizer);
}

bool has_line_search(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
}

}  // namespace mantissa
