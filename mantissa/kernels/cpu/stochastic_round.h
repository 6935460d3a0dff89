#pragma once

#include "mantissa/kernels/stochastic_round.h"

namespace mantissa::kernels::cpu {

/// Rounds in parallel: see StochasticRound.
///
/// Threads: at::get_num_threads() threads. Results do not depend on their number.
void stochastic_round(const StochasticRound& problem);

}  // namespace mantissa::kernels::cpu
