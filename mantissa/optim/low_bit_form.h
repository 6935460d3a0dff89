#pragma once

#include <cstdint>

#include "mantissa/kernels/blockwise.h"

// What a class derived from LowBitOptimizer defines.
namespace mantissa {

/// How an 8-bit or 4-bit optimizer computes, and what its states are.
struct LowBitForm {
  kernels::UpdateRule rule;
  int64_t bits;  ///< of the states: 8 or 4; 32: none has codes
  /// Weight decay shrinks the parameter by lr * weight_decay. If not, it is added to the gradient.
  bool decouples_decay;
};

/// The settings of an update, under the names of bitsandbytes.
struct LowBitHyperparameters {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool maximize = false;
};

}  // namespace mantissa
