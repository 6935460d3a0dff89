#pragma once

#include <c10/util/Exception.h>

#include "mantissa/core/error_message.h"
#include "mantissa/core/rng_state.h"

namespace mantissa {

/// Restores the default generators' states at the end of its scope. A destructor must not throw, so a failure
/// becomes a warning.
class SameRandomNumbers {
 public:
  SameRandomNumbers() = default;
  ~SameRandomNumbers() {
    try {
      restore();
    } catch (...) {  // a program may turn warnings into errors
    }
  }
  SameRandomNumbers(const SameRandomNumbers&) = delete;
  SameRandomNumbers& operator=(const SameRandomNumbers&) = delete;

 private:
  void restore() {
    try {
      load_rng_state(StateReader(state_));
    } catch (...) {
      TORCH_WARN("the random numbers do not continue from their earlier state: ",
                 message_of(std::current_exception()));
    }
  }

  StateDict state_ = rng_state();
};

}  // namespace mantissa
