#include "mantissa/kernels/cpu/stochastic_round.h"

#include "mantissa/core/parallel_internal.h"
#include "mantissa/kernels/cpu/stochastic_round_kernel.h"

namespace mantissa::kernels::cpu {

void stochastic_round(const StochasticRound& problem) {
  at::parallel_for(0, problem.count, 1 << 14,
                   [&](int64_t begin, int64_t end) { generic::stochastic_round(problem, begin, end); });
}

}  // namespace mantissa::kernels::cpu
