#pragma once

#include <string>
#include <vector>

#include "cli/run.h"

namespace mantissa::cli {

/// What the modes reached and, of those that failed, who and why.
struct Report {
  std::vector<Json> results;
  std::string error = {};  ///< the first one, naming its mode; empty if none failed
  bool usage = false;
};

/// `mantissa fit --precision all`: each mode in a process of its own.
Report run_all_modes(const FitOptions& options, bool quiet);

}  // namespace mantissa::cli
