#pragma once

#include <functional>

#include "mantissa/core/state_dict.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace mantissa {

/// All that an optimizer, ours or libtorch's, goes on with, laid out as Python's state_dict():
///
///     {"state": {"0": {"step": 3, "exp_avg": tensor, ...}, ...},
///      "param_groups": [{"lr": 0.1, "betas": [0.9, 0.999], ..., "params": [0, 1]}]}
///
/// with the fused optimizers' seed and number of draws beside them. Parameters are numbered through all
/// groups, a repeated one by its first place.
///
/// Memory:  copies no tensor: take a snapshot() before the next step.
/// Errors:  c10::NotImplementedError for an optimizer whose save() writes nothing, or what a state cannot
///          hold.
/// Example: optimizer_state_test.cpp, OptimizerState.GoesOnBitForBit
StateDict optimizer_state(const torch::optim::Optimizer& optimizer);

/// Makes `optimizer` what the saved one was: its next steps are the same, bit for bit. What it had is
/// dropped, also state of parameters that the saved one had none for.
///
/// State goes to its parameter's device, except step counters, which stay on the CPU. Which values there are
/// and in which shapes and dtypes, the optimizer says if it HasStateFormats (state_format.h); of any other,
/// libtorch's own among them, values have the parameter's shape.
/// Memory:  copies the state.
/// Errors:  c10::ValueError naming the place if the state is of other parameters, other groups or another
///          kind of optimizer, or has an entry that the optimizer does not take; whatever its load() throws.
///          Nothing has changed then. Fused and unfused optimizers take each other's; other kinds no more
///          than load() does.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const StateReader& state);

/// The parameters that `optimizer` steps and nothing else keeps, by number: neither the module's weights nor the state
/// of a precision mode (its master weights). For example a temperature that a task learns beside its module.
///
/// Memory: copies no tensor.
StateDict own_parameters(const torch::optim::Optimizer& optimizer,
                         const std::function<bool(const at::Tensor&)>& is_kept_elsewhere);
/// Puts them back, in place.
/// Errors: c10::ValueError naming the place for other numbers, shapes or dtypes. Nothing has changed then.
void load_own_parameters(torch::optim::Optimizer& optimizer,
                         const std::function<bool(const at::Tensor&)>& is_kept_elsewhere,
                         const StateReader& parameters);

/// What a schedule goes on with. The rates themselves are its optimizer's: load that too.
///
/// A schedule that is Stateful says so itself, as WarmupCosineLR does; of others it is the number of their
/// steps, which is all that libtorch's StepLR has.
StateDict scheduler_state(const torch::optim::LRScheduler& scheduler);
StateDict scheduler_state(const torch::optim::ReduceLROnPlateauScheduler& scheduler);
/// Errors: c10::ValueError naming the place for a state that does not fit. Nothing has changed then.
void load_scheduler_state(torch::optim::LRScheduler& scheduler, const StateReader& state);
void load_scheduler_state(torch::optim::ReduceLROnPlateauScheduler& scheduler, const StateReader& state);

}  // namespace mantissa
