#pragma once

// What each tier's stochastic rounding implements; on the terms of element.h. It is built for one tier so far.

#include <cstdint>

#include "mantissa/kernels/stochastic_round.h"

namespace mantissa::kernels::cpu {

/// Rounds the values [begin, end): see StochasticRound.
using StochasticRoundPart = void(const StochasticRound&, int64_t begin, int64_t end);

namespace generic {
StochasticRoundPart stochastic_round;
}

}  // namespace mantissa::kernels::cpu
