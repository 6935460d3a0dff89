#pragma once

#include "mantissa/core/rng_state.h"

namespace mantissa {

/// Restores the default generators' states at the end of its scope.
class SameRandomNumbers {
 public:
  SameRandomNumbers() = default;
  ~SameRandomNumbers() { load_rng_state(StateReader(state_)); }
  SameRandomNumbers(const SameRandomNumbers&) = delete;
  SameRandomNumbers& operator=(const SameRandomNumbers&) = delete;

 private:
  StateDict state_ = rng_state();
};

}  // namespace mantissa
