#pragma once

#include "mantissa/optim/stochastic_round.h"

namespace mantissa {

/// stochastic_round_() made of tensor operations only, for devices without a kernel of their own.
void stochastic_round_by_operations_(const at::Tensor& out, const at::Tensor& in, uint64_t seed,
                                     const at::Tensor& step, uint64_t offset);

}  // namespace mantissa
