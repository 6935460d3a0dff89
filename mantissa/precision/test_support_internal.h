#pragma once

// For tests: the state of a mode's loss scaler, and the scale of the next backward pass.
#include "mantissa/amp/grad_scaler_state.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

inline GradScalerState scaler_state(const Precision& precision) {
  const StateDict state = precision.state_dict();
  return scalars_from_state(StateReader(state).at("loss_scale"));
}

inline double next_scale(const Precision& precision) {
  return scaler_state(precision).at("scale").toDouble();
}

}  // namespace mantissa
