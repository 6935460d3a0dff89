#pragma once

#include <functional>

#include "mantissa/core/state_dict.h"

namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim

namespace mantissa {

/// Returns everything that an optimizer, ours or libtorch's, needs to continue, laid out as Python's
/// state_dict():
///
///     {"state": {"0": {"step": 3, "exp_avg": tensor, ...}, ...},
///      "param_groups": [{"lr": 0.1, "betas": [0.9, 0.999], ..., "params": [0, 1]}]}
///
/// and the fused optimizers' seed and number of draws beside them. Parameters are numbered through all
/// groups; a repeated one has the number of its first place.
///
/// Memory:  copies no tensor: take a snapshot() before the next step.
/// Errors:  c10::NotImplementedError for an optimizer whose save() writes nothing, or values that a state
///          cannot hold.
/// Example: optimizer_state_test.cpp, OptimizerState.ContinuesBitForBit
StateDict optimizer_state(const torch::optim::Optimizer& optimizer);

/// Restores the saved state, so that the next steps of `optimizer` equal the saved optimizer's, bit for bit.
/// Its previous state is dropped, including that of parameters for which the saved one has none.
///
/// State moves to its parameter's device, except step counters, which stay on the CPU. An optimizer that
/// HasStateFormats (state_format.h) defines its values with their shapes and dtypes; for any other optimizer,
/// including libtorch's own, values have the parameter's shape.
/// Memory:  copies the state.
/// Errors:  c10::ValueError naming the place if the state belongs to other parameters, other groups or
///          another kind of optimizer, or has an entry that the optimizer does not accept; and what its
///          load() throws. Nothing has changed then. Fused and unfused optimizers accept each other's state;
///          other kinds only as far as load() does.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const StateReader& state);

/// Returns the parameters that `optimizer` steps and that nothing else saves, by number. They belong neither
/// to the module's weights nor to the state of a precision mode (its master weights), for example a
/// temperature that a task learns beside its module.
///
/// Memory: copies no tensor.
StateDict own_parameters(const torch::optim::Optimizer& optimizer,
                         const std::function<bool(const at::Tensor&)>& is_kept_elsewhere);
/// Restores them in place.
/// Errors: c10::ValueError naming the place for other numbers, shapes or dtypes. Nothing has changed then.
void load_own_parameters(torch::optim::Optimizer& optimizer,
                         const std::function<bool(const at::Tensor&)>& is_kept_elsewhere,
                         const StateReader& parameters);

/// Returns what a schedule needs to continue. The rates themselves are part of its optimizer's state: load
/// that too.
///
/// A schedule that is Stateful provides its own state, as WarmupCosineLR does. For others the state is the
/// number of their steps, which is all that libtorch's StepLR has.
StateDict scheduler_state(const torch::optim::LRScheduler& scheduler);
StateDict scheduler_state(const torch::optim::ReduceLROnPlateauScheduler& scheduler);
/// Errors: c10::ValueError naming the place for a state that does not fit. Nothing has changed then.
void load_scheduler_state(torch::optim::LRScheduler& scheduler, const StateReader& state);
void load_scheduler_state(torch::optim::ReduceLROnPlateauScheduler& scheduler, const StateReader& state);

}  // namespace mantissa
