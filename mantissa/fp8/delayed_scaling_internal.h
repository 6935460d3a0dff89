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

/// Copies the values of a state that was moved on into the tensors of `state`.
void commit(const DelayedScalingState& next, DelayedScalingState& state);

}  // namespace mantissa
