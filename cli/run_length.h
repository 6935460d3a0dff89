#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/fit_options.h"
#include "mantissa/data/loader.h"
#include "mantissa/trainer/batch_limit.h"

namespace mantissa::cli {

/// What the words about how long a run goes and how much of an epoch it sees mean.
struct RunLength {
  std::optional<std::chrono::milliseconds> max_time;  ///< DD:HH:MM:SS as Lightning has it
  /// "100" is a count; "0.25", "1.0" are shares.
  BatchLimit limit_train_batches, limit_val_batches, overfit_batches, val_check_interval;
};

/// Errors: c10::ValueError, the flag in it, for words that mean nothing.
RunLength run_length(const FitOptions& options);

/// Errors: c10::ValueError if a share of an epoch's batches is less than one of them. `val` may be null.
void check_shares(const FitOptions& options, const Loader& train, const Loader* val);

/// Optimizer steps of the whole run, which the learning-rate schedule must know beforehand.
int64_t total_steps(const FitOptions& options, const Loader& train);

}  // namespace mantissa::cli
