#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/fit_options.h"
#include "mantissa/data/loader.h"
#include "mantissa/trainer/batch_limit.h"

namespace mantissa::cli {

/// "100": a count; "0.25", "1.0": a share.
/// Errors: c10::ValueError, `flag` in it, for anything else.
BatchLimit batch_limit(const char* flag, const std::string& text);

/// Of `--max-time`, DD:HH:MM:SS as Lightning has it; unset if it is empty.
/// Errors: c10::ValueError for anything else, and for no time at all.
std::optional<std::chrono::milliseconds> max_time(const FitOptions& options);

/// Whether the words about how long a run goes and how much of an epoch it sees mean something.
/// Errors: c10::ValueError.
void check_limits(const FitOptions& options);

/// Optimizer steps of the whole run, which the learning-rate schedule must know beforehand.
int64_t total_steps(const FitOptions& options, const Loader& train);

}  // namespace mantissa::cli
