#pragma once

#include "cli/fit_options.h"

namespace mantissa::cli {

/// Warns about each option in `given` that has no effect on `resolved`.
void warn_without_effect(const OptionValues& given, const FitOptions& resolved);

}  // namespace mantissa::cli
