#pragma once

// update_scales() in two halves, for callers that end a step of several groups of states at once.

#include <vector>

#include "mantissa/fp8/delayed_scaling.h"

namespace mantissa {

/// Returns the states of the next step, in memory of their own; `states` keep theirs as it is.
/// Errors: those of update_scales().
std::vector<DelayedScalingState> next_states(c10::ArrayRef<DelayedScalingState*> states, at::ScalarType dtype,
                                             const DelayedScaling& recipe, const AmaxReduction& reduction);

/// Copies what next_states() returned for `state` into its tensors.
void commit(const DelayedScalingState& next, DelayedScalingState& state);

}  // namespace mantissa
