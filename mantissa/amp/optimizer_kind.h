#pragma once

namespace torch::optim {
class Optimizer;
}

namespace mantissa {

class StepSupportsAmpScaling;

/// Returns `optimizer` as one that divides by the loss scale inside its step, as the fused optimizers do; null if it
/// does not.
StepSupportsAmpScaling* as_self_unscaling(torch::optim::Optimizer& optimizer);
const StepSupportsAmpScaling* as_self_unscaling(const torch::optim::Optimizer& optimizer);

/// Whether `optimizer` evaluates its loss several times a step, as torch::optim::LBFGS does.
bool has_line_search(const torch::optim::Optimizer& optimizer);

}  // namespace mantissa
