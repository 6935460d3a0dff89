#pragma once

#include "mantissa/core/rng_state.h"

namespace mantissa {

/// At its end the default generators are where they were.
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
