#pragma once

#include <string>
#include <vector>

#include "cli/train_run.h"

namespace mantissa::cli {

/// What the modes reached and, of those that failed, who and why.
struct Report {
  std::vector<Json> results;
  std::string error = {};  ///< the first one, naming its mode; empty if none failed
  bool usage = false;
};

/// The same run in every mode but the historical ones, each to be run in a process of its own. Those that
/// these options do not fit are in `left_out`, with the reason.
std::vector<FitOptions> runs_of_all_modes(const FitOptions& options, std::vector<std::string>& left_out);

/// `mantissa fit --precision all`: each mode in a process of its own; `plan` as of run_fit().
Report run_all_modes(const FitOptions& options, bool quiet, const Json& plan);

}  // namespace mantissa::cli
