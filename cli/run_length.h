#pragma once

#include <cstdint>

#include "cli/fit_options.h"
#include "mantissa/data/loader.h"

namespace mantissa::cli {

/// Errors: c10::ValueError if a share of an epoch's batches is less than one of them. `val` may be null.
void check_shares(const FitOptions& options, const Loader& train, const Loader* val);

/// Optimizer steps of the whole run, which the learning-rate schedule must know beforehand.
int64_t total_steps(const FitOptions& options, const Loader& train);

}  // namespace mantissa::cli
