#pragma once

// Stochastic rounding, for any device. This header follows the rules of element.h.

#include <cstdint>

#include "mantissa/kernels/element.h"

namespace mantissa::kernels {

/// Sets out[i] to in[i], rounded up or down at random for `count` values. The probabilities keep the mean.
///
/// Numerics: value i takes draw `offset` + i of stream `step` under key `seed`: 16 bits of Philox4x32-10.
///           Every device gives the same bits; stochastic_round_internal.h defines them.
struct StochasticRound {
  const float* in = nullptr;
  void* out = nullptr;
  Element element = Element::kBFloat16;  ///< of `out`: a 16-bit type
  int64_t count = 0;
  uint64_t seed = 0;
  const int64_t* step = nullptr;  ///< in the device's memory, so that a recorded graph can increment it
  uint64_t offset = 0;
};

}  // namespace mantissa::kernels
