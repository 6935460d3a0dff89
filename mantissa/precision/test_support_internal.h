#pragma once

// For tests: the loss scale that the next backward pass will use, and what moves it.
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
