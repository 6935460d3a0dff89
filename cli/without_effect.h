#pragma once

#include "cli/fit_options.h"

namespace mantissa::cli {

/// Warns of each option in `given` that changes nothing in `resolved`.
void warn_without_effect(const OptionValues& given, const FitOptions& resolved);

}  // namespace mantissa::cli
