#pragma once

#include "mantissa/kernels/stochastic_round.h"

namespace mantissa::kernels::cpu {

/// See StochasticRound.
///
/// Threads: at::get_num_threads() of them. Results do not depend on their number.
void stochastic_round(const StochasticRound& problem);

}  // namespace mantissa::kernels::cpu
