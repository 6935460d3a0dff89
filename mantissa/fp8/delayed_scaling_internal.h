#pragma once

// update_scales() in parts, for callers that end a step of several groups of states at once.

#include <vector>

#include "mantissa/fp8/delayed_scaling.h"

namespace mantissa {

/// Returns the states in memory of their own.
/// Errors: c10::ValueError for a state of another shape than delayed_scaling_state() gives.
std::vector<DelayedScalingState> copies_of(c10::ArrayRef<DelayedScalingState*> states);

/// Replaces the amaxes of the step in progress by the largest ones of all ranks, with one call of `reduction`.
void reduce_amaxes(c10::ArrayRef<DelayedScalingState> states, const AmaxReduction& reduction);

/// Moves the history of a state on and sets its scales for the next step.
/// Errors: what `amax_compute` throws, and c10::ValueError if it returns another shape.
void advance(DelayedScalingState& state, at::ScalarType dtype, const DelayedScaling& recipe);

/// Does the same for states of one recipe that are on one device, with a few operators for all of them.
void advance_together(c10::ArrayRef<DelayedScalingState*> states, at::ScalarType dtype,
                      const DelayedScaling& recipe);

/// advance() by libtorch's operators, with the same bits. Nothing reads from the device.
void advance_by_operators(DelayedScalingState& state, float max, const DelayedScaling& recipe);
/// Does the same with the amaxes that the recipe's function has found.
void advance_by_operators(DelayedScalingState& state, const at::Tensor& amax, float max, int64_t margin);

/// Copies the values of states that were moved on into the tensors of `states`.
void commit(c10::ArrayRef<DelayedScalingState> next, c10::ArrayRef<DelayedScalingState*> states);

}  // namespace mantissa
