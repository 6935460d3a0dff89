#pragma once

// The interface of each tier's stochastic rounding. This header follows the rules of element.h. So far only
// the generic tier implements it.

#include <cstdint>

#include "mantissa/kernels/stochastic_round.h"

namespace mantissa::kernels::cpu {

/// Rounds the values [begin, end): see StochasticRound.
using StochasticRoundPart = void(const StochasticRound&, int64_t begin, int64_t end);

namespace generic {
StochasticRoundPart stochastic_round;
}

}  // namespace mantissa::kernels::cpu
