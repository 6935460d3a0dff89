#pragma once

#include <cstdint>

#include "cli/fit_options.h"
#include "mantissa/data/loader.h"

namespace mantissa::cli {

/// Errors: c10::ValueError if a fraction of an epoch's batches is less than one batch. `val` may be null.
void check_shares(const FitOptions& options, const Loader& train, const Loader* val);

/// Returns the optimizer steps of the whole run, which the learning-rate schedule needs in advance.
int64_t total_steps(const FitOptions& options, const Loader& train);

}  // namespace mantissa::cli
