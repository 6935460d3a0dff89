#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/train_run.h"

namespace mantissa::cli {

/// Returns the width of a table's column with the names of modes.
size_t mode_column_width();

/// The results of the modes, and the errors of those that failed.
struct Report {
  std::vector<Json> results;
  std::string error = {};  ///< the first error, which names its mode; empty if none failed
  bool usage = false;
};

/// Returns the same run for every mode except the historical ones, each to be run in its own process. Modes
/// that do not support these options are in `left_out`, with the reason.
std::vector<FitOptions> runs_of_all_modes(const FitOptions& options, std::vector<std::string>& left_out);

/// Runs `mantissa fit --precision all`: each mode in its own process. `plan` is as for run_fit().
Report run_all_modes(const FitOptions& options, bool quiet, const Json& plan);

}  // namespace mantissa::cli
