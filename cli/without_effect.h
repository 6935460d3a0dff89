#pragma once

#include "cli/fit_options.h"

namespace mantissa::cli {

/// Warns about each option in `given` that has no effect on `resolved`.
void warn_without_effect(const OptionValues& given, const FitOptions& resolved);

/// Warns if a run that begins freezes weights which no file gives values.
void warn_of_random_weights(const OptionValues& given, const FitOptions& resolved);

}  // namespace mantissa::cli
